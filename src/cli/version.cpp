#include "base/dtype.h"
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
  return format(
      "trainer {} (commit {})\nbackends: cpu, {}, {}, {}\nISA found: {}; in use: {}\n"
      "matmul: fp32 with {}, bf16 with {}\ndevices: cpu, {} threads{}",
      version(), commit().empty() ? "unknown" : commit(), comm::mpi_version().value_or("no MPI"),
      device::cuda::version().value_or("no CUDA in this build"), comm::nccl_version().value_or("no NCCL"),
      device::isa_summary(), device::name_of(here.isa()), ops::product_path(here, DType::f32),
      ops::product_path(here, DType::bf16), here.threads(), gpus());
}

}  // namespace trainer::cli
