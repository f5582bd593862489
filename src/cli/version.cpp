#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <snappy-stubs-public.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>
#if __has_include(<toml++/impl/version.hpp>)
#include <toml++/impl/version.hpp>
#else
#include <toml++/impl/version.h>
#endif

#include "base/dtype.h"
#include "base/join.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/cli.h"
#include "comm/gpu_transport.h"
#include "device/cuda/cuda_device.h"
#include "ops/gemm.h"
#include "trainer_version.h"

namespace trainer::cli {

std::string version() { return TRAINER_VERSION; }
std::string commit() { return TRAINER_COMMIT; }

namespace {

std::string compiler() {
#if defined(__clang__)
  return format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

/// The libraries that this program was compiled with. SentencePiece's headers do not state its version.
std::vector<std::pair<std::string, std::string>> libraries() {
  const auto of = [](int major, int minor, int patch) { return format("{}.{}.{}", major, minor, patch); };
  return {{"fmt", of(FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
          {"nlohmann-json", of(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
          {"toml++", of(TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH)},
          {"CLI11", CLI11_VERSION},
          {"PCRE2", format("{}.{}", PCRE2_MAJOR, PCRE2_MINOR)},
          {"xxHash", of(XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE)},
          {"zlib", ZLIB_VERSION},
          {"zstd", ZSTD_VERSION_STRING},
          {"snappy", of(SNAPPY_MAJOR, SNAPPY_MINOR, SNAPPY_PATCHLEVEL)},
          {"SentencePiece", TRAINER_SENTENCEPIECE_VERSION}};
}

/// Describes each GPU ("cuda 0: NVIDIA H200, sm_90, 132 multiprocessors, 139.8 GiB"), or returns why none was found.
std::string gpus() {
  if (!device::cuda::version()) return "";
  const std::vector<device::cuda::Facts> devices = device::cuda::devices();
  if (devices.empty()) return "; " + device::cuda::no_device_reason();
  std::string text;
  for (const device::cuda::Facts& gpu : devices)
    text += format("\n         cuda {}: {}, sm_{}, {} multiprocessors, {}", gpu.ordinal, gpu.name, gpu.capability,
                   gpu.multiprocessors, format_bytes(gpu.memory_bytes));
  return text;
}

}  // namespace

std::string version_text() {
  device::DryDevice here(device::default_threads());
  std::vector<std::string> built;
  for (const auto& [name, of] : libraries()) built.push_back(name + " " + of);
  return format(
      "trainer {} (commit {})\nbackends: cpu, {}, {}, {}\nbuilt with: {}, {}; {}\nISA found: {}; in use: {}\n"
      "matmul: fp32 with {}, bf16 with {}\ndevices: cpu, {} threads{}",
      version(), commit().empty() ? "unknown" : commit(), comm::mpi_version().value_or("no MPI"),
      device::cuda::version().value_or("no CUDA in this build"), comm::nccl_version().value_or("no NCCL"), compiler(),
      TRAINER_BUILD_TYPE, fmt::join(built, ", "), device::isa_summary(), device::name_of(here.isa()),
      ops::product_path(here, DType::f32), ops::product_path(here, DType::bf16), here.threads(), gpus());
}

std::string version_json() {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::optional<std::string>& text) { return text ? Json(*text) : Json(); };
  device::DryDevice here(device::default_threads());
  Json built = Json::object(), sets = Json::array(), devices = Json::array();
  for (const auto& [name, of] : libraries()) built[name] = of;
  for (const device::Isa isa : device::kIsas)
    if (device::available(isa)) sets.push_back(device::name_of(isa));
  for (const device::cuda::Facts& gpu : device::cuda::devices())
    devices.push_back({{"ordinal", gpu.ordinal},
                       {"name", gpu.name},
                       {"capability", gpu.capability},
                       {"multiprocessors", gpu.multiprocessors},
                       {"memory_bytes", gpu.memory_bytes}});
  const Json document{
      {"version", version()},
      {"commit", commit()},
      {"compiler", compiler()},
      {"build_type", TRAINER_BUILD_TYPE},
      {"libraries", built},
      {"mpi", or_null(comm::mpi_version())},
      {"mpi_modules", comm::mpi_modules()},
      {"cuda", or_null(device::cuda::version())},
      {"nccl", or_null(comm::nccl_version())},
      {"isa", {{"found", sets}, {"in_use", device::name_of(here.isa())}}},
      {"matmul", {{"fp32", ops::product_path(here, DType::f32)}, {"bf16", ops::product_path(here, DType::bf16)}}},
      {"threads", here.threads()},
      {"gpus", devices}};
  return json_text(document);
}

}  // namespace trainer::cli
