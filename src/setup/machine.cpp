#include "setup/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/cgroup.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/gpu_transport.h"
#include "config/mistakes.h"
#include "config/resolve.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention.h"
#include "ops/gemm.h"

namespace trainer::setup {
namespace {

/// Sets the host's limit: MemAvailable of /proc/meminfo, or what this process's cgroups still grant when that is less,
/// shared by the ranks of this host.
void find_host_memory(Machine& machine, int ranks) {
  int64_t bytes = INT64_MAX;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) bytes = std::stoll(line.substr(13)) * 1024;
  const int64_t granted = group_limits().memory.value_or(INT64_MAX);
  machine.group_limited = granted < bytes;
  machine.host_limit = std::min(bytes, granted) / ranks;
}

/// Returns this rank's GPU; empty: it uses the CPU. The ranks of a host are assigned the host's devices round-robin,
/// and share devices if there are more ranks than devices.
std::optional<device::cuda::Facts> choose_gpu(const config::Config& config, const comm::World& world) {
  const bool requested = config.run.device == config::DeviceChoice::cuda;
  const bool fp64 = config.precision.compute == config::Compute::fp64;
  if (config.run.device == config::DeviceChoice::cpu || (fp64 && !requested)) return std::nullopt;
  if (fp64)
    throw Error(Code::config,
                "precision.compute = \"fp64\" with run.device = \"cuda\": fp64 is supported on CPUs only; use "
                "run.device = \"cpu\"");
  const std::vector<device::cuda::Facts> devices = device::cuda::devices();
  if (devices.empty()) {
    if (!requested) return std::nullopt;
    throw Error(Code::config,
                format("run.device = \"cuda\": {}; use \"auto\" or \"cpu\"", device::cuda::no_device_reason()));
  }
  return devices[static_cast<size_t>(world.local_rank()) % devices.size()];
}

/// Throws on all ranks if some compute on GPUs and others on CPUs: these cut large tensors into different pieces
/// (parallel::RowPieces, head_chunk()), so that their operations would not match.
void require_one_device_kind(comm::World& world, bool gpu) {
  const std::vector<std::string> gpus = world.control().gather(gpu ? "gpu" : "");
  const auto with = std::ranges::find(gpus, "gpu"), without = std::ranges::find(gpus, "");
  if (with == gpus.end() || without == gpus.end()) return;
  throw Error(Code::plan, format("rank {} has a GPU, but rank {} has none: all ranks must compute on GPUs or all on "
                                 "CPUs; start ranks only where there are GPUs, or set run.device = \"cpu\"",
                                 with - gpus.begin(), without - gpus.begin()))
      .on(Scope::all_ranks);
}

/// Returns cuDNN if it computes attention on this GPU; null: the built-in kernels do. `say`: log the reason if "auto"
/// selects the built-in kernels.
std::unique_ptr<device::Library> choose_attention(const config::Config& config, const device::cuda::Facts& gpu,
                                                  bool say) {
  const config::AttentionKernels requested = config.hardware.attention;
  if (requested == config::AttentionKernels::own) return nullptr;
  const bool automatic = requested == config::AttentionKernels::automatic;
  try {
    return ops::cudnn_attention(gpu, config.precision.deterministic);
  } catch (const Error& error) {
    if (error.code() != Code::usage) throw;
    if (!automatic)
      throw Error(Code::config, format("hardware.attention = \"cudnn\": {}; set it to \"auto\"", error.what()));
    if (say) log::info("attention uses the built-in kernels: {}", error.what());
    return nullptr;
  }
}

/// Returns why bf16 is, or is not, the default compute type on this CPU.
std::string bf16_reason(device::Isa isa) {
  const device::CpuFeatures& cpu = device::cpu_features();
  if (isa == device::Isa::amx) return "default: this CPU has AMX";
  if (device::fast_bf16(cpu, isa)) return "default: this CPU has AVX512-BF16, twice as fast as fp32";
  if (isa == device::Isa::avx512bf16) return "default: AVX512-BF16 is no faster than fp32 on CPUs with AMX";
  return "default: this CPU has no fast bf16 unit";
}

}  // namespace

Machine choose_machine(const config::Config& config, comm::World& world) {
  Machine machine;
  world.control().run_on_all_ranks([&] { machine.gpu = choose_gpu(config, world); });
  require_one_device_kind(world, machine.gpu.has_value());
  if (machine.gpu) {
    machine.libraries->attention = choose_attention(config, *machine.gpu, world.first());
  } else if (config.hardware.attention == config::AttentionKernels::cudnn && world.first()) {
    log::info("hardware.attention = \"cudnn\" is ignored: a CPU uses the built-in kernels");
  }
  const int threads = device::default_threads(world.local_size()), share = device::share_of_cores(world.local_size());
  machine.threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : threads;
  if (config.run.threads == 0 && threads < share && world.local_rank() == 0)
    log::warning(
        "this process may use only {} of its share of {} cores; start it with mpirun --bind-to none, or set "
        "run.threads",
        threads, share);
  const int64_t at_once = int64_t{machine.threads} * world.local_size();
  const int cores = device::share_of_cores(1);
  if (config.run.threads > 0 && at_once > cores && world.local_rank() == 0)
    log::warning("run.threads = {}{} exceeds {} {}: the run will be slower", config.run.threads,
                 world.local_size() > 1 ? format(" on each of {} ranks", world.local_size()) : "",
                 cores < sysconf(_SC_NPROCESSORS_ONLN) ? "the CPU quota of this container or job," : "this machine's",
                 counted(cores, "core"));
  machine.ranks = world.size();
  machine.rank = world.rank();
  machine.isa = agree_on_isa(world, device::detect_isa());
  double slow = machine.gpu || device::fast_bf16(device::cpu_features(), machine.isa) ? 0 : 1;
  world.control().sum({&slow, 1});  // ranks agree on the type as on the instruction set
  const bool bf16 = slow == 0;
  machine.compute = config::type_of(config.precision.compute).value_or(bf16 ? DType::bf16 : DType::f32);
  machine.compute_reason = config.precision.compute != config::Compute::automatic ? "requested"
                           : machine.gpu                                          ? "default: a GPU"
                                                                                  : bf16_reason(machine.isa);
  find_host_memory(machine, world.local_size());
  const int sharers = comm::ranks_on_gpu(world, machine.gpu);
  if (config.hardware.memory_limit > 0) {
    machine.memory_limit = static_cast<int64_t>(config.hardware.memory_limit * (1 << 30));
  } else if (machine.gpu) {
    machine.memory_limit = device::cuda::free_memory(machine.gpu->ordinal) / sharers;
  } else {
    machine.memory_limit = machine.host_limit;
  }
  return machine;
}

device::Isa agree_on_isa(comm::World& world, device::Isa own) {
  const std::vector<std::string> all = world.control().gather(std::string(1, static_cast<char>(own)));
  const auto of = [&](auto rank) { return static_cast<device::Isa>(rank->front()); };
  const auto [lowest, highest] = std::ranges::minmax_element(all);
  if (of(lowest) != of(highest) && world.first())
    log::info(
        "the ranks' CPUs have different instruction sets, {} on rank {} and {} on rank {}: all ranks use {}, so "
        "that their results agree",
        name_of(of(highest)), highest - all.begin(), name_of(of(lowest)), lowest - all.begin(), name_of(of(lowest)));
  return of(lowest);
}

void require_lanes_for_stages(const config::Config& config, const Machine& machine) {
  if (machine.nccl && config.parallel.stages > 1 && config.parallel.lanes > 1)
    throw Error(Code::config,
                format("{}: lanes = {} with several stages needs another transport than NCCL; use lanes = 1",
                       config::place(config, "parallel.lanes"), config.parallel.lanes))
        .on(Scope::all_ranks);
}

void require_one_compute(comm::World& world, const Machine& machine) {
  const std::vector<std::string> types = world.control().gather(std::string(name_of(machine.compute)));
  const auto other = std::find_if(types.begin(), types.end(), [&](const auto& type) { return type != types.front(); });
  world.control().run_on_all_ranks([&] {
    if (!world.first() || other == types.end()) return;
    throw Error(Code::plan, format("rank {} would compute in {} but rank 0 in {}, each its machine's default; set "
                                   "precision.compute to one of these types",
                                   other - types.begin(), *other, types.front()));
  });
}

void warn_of_different_kernels(comm::World& world, const Machine& machine, std::string_view optimizer) {
  const std::vector<std::string> kernels =
      world.control().gather(ops::product_path(*make_dry_device(machine), machine.compute) +
                             (machine.gpu ? " on " + device_text(machine) : ""));
  const auto other = std::ranges::find_if(kernels, [&](const auto& text) { return text != kernels.front(); });
  if (!world.first() || other == kernels.end()) return;
  log::warning(
      "rank {} computes with {}, but rank 0 with {}: results depend on which rank updates a matrix "
      "(optim.name = \"{}\"); use equal machines, or set TRAINER_ISA to an instruction set that all of them have",
      other - kernels.begin(), *other, kernels.front(), optimizer);
}

std::unique_ptr<device::Device> make_device(const Machine& machine) {
  if (machine.gpu) return device::cuda::make_device(machine.gpu->ordinal, machine.threads, machine.libraries);
  return std::make_unique<device::CpuDevice>(machine.threads, machine.isa);
}

std::unique_ptr<device::Device> make_dry_device(const Machine& machine) {
  if (machine.gpu) return std::make_unique<device::DryDevice>(*machine.gpu, machine.threads, machine.libraries);
  return std::make_unique<device::DryDevice>(machine.threads, machine.isa);
}

std::string device_text(const Machine& machine) {
  if (!machine.gpu) return std::string(device::name_of(machine.isa));
  return format("{}, sm_{}", machine.gpu->name, machine.gpu->capability);
}

}  // namespace trainer::setup
