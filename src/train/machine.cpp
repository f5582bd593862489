#include "train/machine.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "checkpoint/manifest.h"
#include "config/layout_rules.h"
#include "device/cuda/cuda_device.h"
#include "ops/gemm_tuning.h"
#include "train/generate.h"
#include "train/units.h"

namespace trainer::train {
namespace {

constexpr std::string_view kOnCpu = "the products of a CPU are our own";

/// MemAvailable of /proc/meminfo, or the cgroup's remaining memory when that is less; bytes.
int64_t available_memory() {
  int64_t bytes = INT64_MAX;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) bytes = std::stoll(line.substr(13)) * 1024;
  int64_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used)
    bytes = std::min(bytes, limit - used);
  return bytes;
}

/// What a run holds beside its tensors, in bytes: tables of runs and of recorded programs, touched stacks, what a save
/// takes (copies of the runs of weights and both moments, one chunk), and a fixed share for logs and the rest.
int64_t host_bytes(Trainer& trainer, bool training) {
  constexpr int64_t kStack = 16 << 10, kFixed = 128 << 10;
  int64_t runs = 0, largest = 0, recorded = 0;
  for (const params::Param& param : trainer.store().params()) {
    runs += static_cast<int64_t>(param.runs.size() * sizeof(mesh::Run));
    largest = std::max(largest, param.count() * size_of(trainer.store().state_dtype()));
  }
  for (const auto& [key, program] : trainer.arena().programs())
    recorded += static_cast<int64_t>(program.intervals.size() * sizeof(Arena::Interval));
  const int64_t save = training ? 3 * runs + std::min(largest, checkpoint::kChunkBytes) : 0;
  return runs + recorded + save + trainer.device().threads() * kStack + kFixed;
}

std::string change_that_fits(const config::Config& config, int64_t vocab, const Machine& machine) {
  const auto fits = [&](const config::Config& changed) {
    return plan_run(changed, vocab, machine, true).total <= machine.memory_limit;
  };
  config::Config changed = config;
  for (int64_t micro = config.train.micro_batch; micro >= 1; --micro) {
    if (config.train.global_batch % (micro * std::max<int64_t>(1, config.parallel.data)) != 0) continue;
    changed.train.micro_batch = micro;
    if (!config::layout_fits(changed)) continue;
    for (const auto& [mode, name] : {std::pair{config::Recompute::none, "none"},
                                     {config::Recompute::selective, "selective"},
                                     {config::Recompute::full, "full"}}) {
      if (mode < config.train.recompute) continue;
      changed.train.recompute = mode;
      if (fits(changed)) return format("train.micro_batch = {} with train.recompute = \"{}\" fits", micro, name);
    }
  }
  return "not even train.micro_batch = 1 with train.recompute = \"full\" fits: make the model smaller, or split it "
         "over more ranks";
}

/// The GPU of this rank: ranks of one host take its devices in turn, and share them when there are more ranks.
std::optional<device::cuda::Facts> choose_gpu(const config::Config& config, const comm::World& world) {
  const bool asked = config.run.device == config::DeviceChoice::cuda;
  const bool fp64 = config.precision.compute == config::Compute::fp64;
  if (config.run.device == config::DeviceChoice::cpu || (fp64 && !asked)) return std::nullopt;
  if (fp64)
    throw Error(Code::config, "precision.compute = \"fp64\" with run.device = \"cuda\": fp64 is computed on CPUs only");
  const std::vector<device::cuda::Facts> devices = device::cuda::devices();
  if (devices.empty()) {
    if (!asked) return std::nullopt;
    throw Error(Code::config,
                format("run.device = \"cuda\": {}; use \"auto\" or \"cpu\"", device::cuda::no_device_reason()));
  }
  return devices[static_cast<size_t>(world.local_rank()) % devices.size()];
}

/// Why the default type on a CPU is bf16, or why not.
std::string bf16_reason(device::Isa isa) {
  const device::CpuFeatures& cpu = device::cpu_features();
  if (isa == device::Isa::amx) return "default: this CPU has AMX";
  if (device::fast_bf16(cpu, isa)) return "default: this CPU has AVX512-BF16, twice as fast as fp32";
  if (isa == device::Isa::avx512bf16) return "default: AVX512-BF16 is no faster than fp32 on CPUs with AMX";
  return "default: no matrix unit for bf16 here";
}

}  // namespace

Machine choose_machine(const config::Config& config, const comm::World& world) {
  Machine machine;
  machine.gpu = choose_gpu(config, world);
  const bool cudnn = config.hardware.attention == config::AttentionKernels::cudnn;
  if (machine.gpu) {
    try {
      ops::use_cudnn_attention(*machine.gpu, cudnn);
    } catch (const Error& error) {
      throw Error(Code::config, format("hardware.attention = \"cudnn\": {}; leave it at \"own\"", error.what()));
    }
  } else if (cudnn && world.first()) {
    log::info("hardware.attention = \"cudnn\" is of no use here: the attention of a CPU is our own");
  }
  const int threads = device::default_threads(world.local_size()), share = device::share_of_cores(world.local_size());
  machine.threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : threads;
  if (config.run.threads == 0 && threads < share && world.local_rank() == 0)
    log::warning(
        "this process may use {} of the {} cores that are its share; start it with mpirun --bind-to none, or set "
        "run.threads",
        threads, share);
  const int64_t at_once = int64_t{machine.threads} * world.local_size();
  const int cores = device::share_of_cores(1);
  if (config.run.threads > 0 && at_once > cores && world.local_rank() == 0)
    log::warning(
        "run.threads = {}{} is more than the {} core{} of this machine: threads take turns, and the run is slower",
        config.run.threads, world.local_size() > 1 ? format(" on each of {} ranks", world.local_size()) : "", cores,
        cores == 1 ? "" : "s");
  machine.ranks = world.size();
  machine.rank = world.rank();
  machine.isa = device::detect_isa();
  switch (config.precision.compute) {
    case config::Compute::bf16:
      machine.compute = DType::bf16;
      break;
    case config::Compute::fp32:
      machine.compute = DType::f32;
      break;
    case config::Compute::fp64:
      machine.compute = DType::f64;
      break;
    case config::Compute::automatic:
      machine.compute =
          machine.gpu || device::fast_bf16(device::cpu_features(), machine.isa) ? DType::bf16 : DType::f32;
      break;
  }
  machine.compute_reason = config.precision.compute != config::Compute::automatic ? "asked for"
                           : machine.gpu                                          ? "default: a GPU"
                                                                                  : bf16_reason(machine.isa);
  if (config.hardware.memory_limit > 0) {
    machine.memory_limit = static_cast<int64_t>(config.hardware.memory_limit * (1 << 30));
  } else if (machine.gpu) {
    const auto devices = static_cast<int64_t>(device::cuda::devices().size());
    machine.memory_limit =
        device::cuda::free_memory(machine.gpu->ordinal) / divide_up(int64_t{world.local_size()}, devices);
  } else {
    machine.memory_limit = available_memory() / world.local_size();
  }
  return machine;
}

void require_one_compute(comm::World& world, const Machine& machine) {
  const std::vector<std::string> types = world.control().gather(std::string(name_of(machine.compute)));
  const auto other = std::find_if(types.begin(), types.end(), [&](const auto& type) { return type != types.front(); });
  world.control().together([&] {
    if (!world.first() || other == types.end()) return;
    throw Error(Code::plan, format("rank {} would compute in {}, rank 0 in {}, each by the default of its machine: set "
                                   "precision.compute to one of them",
                                   other - types.begin(), *other, types.front()));
  });
}

std::unique_ptr<device::Device> make_device(const Machine& machine) {
  if (machine.gpu) return device::cuda::make_device(machine.gpu->ordinal, machine.threads);
  return std::make_unique<device::CpuDevice>(machine.threads, machine.isa);
}

std::unique_ptr<device::Device> make_dry_device(const Machine& machine) {
  if (machine.gpu) return std::make_unique<device::DryDevice>(*machine.gpu, machine.threads);
  return std::make_unique<device::DryDevice>(machine.threads, machine.isa);
}

std::string device_text(const Machine& machine) {
  if (!machine.gpu) return std::string(device::name_of(machine.isa));
  return format("{}, sm_{}", machine.gpu->name, machine.gpu->capability);
}

/// By data sheets, dense: the longest name that the device's contains, and its TFLOP/s in bf16 and in fp32 without
/// TF32.
std::optional<double> data_sheet_peak(const std::string& name, DType compute) {
  // TFLOP/s in bf16, and in fp32 without TF32. The longest name that the device's contains is it.
  struct Part {
    std::string_view name;
    double bf16, fp32;
  };
  static constexpr Part kParts[] = {
      {"A100", 312, 19.5},      {"A10", 125, 31.2},        {"A30", 165, 10.3},        {"H100", 989.4, 66.9},
      {"H100 PCIe", 756, 51.2}, {"H100 NVL", 835.5, 60.3}, {"H200", 989.4, 66.9},     {"H200 NVL", 835.5, 60.3},
      {"GH200", 989.4, 66.9},   {"H800", 989.4, 66.9},     {"H20", 148, 44},          {"L4", 121, 30.3},
      {"L40S", 362, 91.6},      {"RTX 3090", 71.2, 35.6},  {"RTX 4090", 165.2, 82.6}, {"RTX 5090", 209.5, 104.8}};
  const Part* best = nullptr;
  for (const Part& part : kParts) {
    const size_t at = name.find(part.name);
    if (at == std::string::npos) continue;
    const size_t end = at + part.name.size();  // "L4" is not the start of "L40S"
    if (end < name.size() && std::isalnum(static_cast<unsigned char>(name[end]))) continue;
    if (best == nullptr || part.name.size() > best->name.size()) best = &part;
  }
  if (best == nullptr) return std::nullopt;
  return (compute == DType::bf16 ? best->bf16 : best->fp32) * 1e12;
}

std::string use_gemm_tuning(const config::Config& config, comm::World& world, const device::Device& device) {
  const std::string& path = config.hardware.gemm_tuning;
  if (path.empty()) return {};
  std::string text;
  world.control().together([&] {
    if (!world.first()) return;
    std::ifstream file(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
    if (!file) throw Error(Code::config, format("hardware.gemm_tuning: {} cannot be read", path));
  });
  world.control().broadcast(text);
  std::optional<ops::GemmTuning> tuning;
  std::string misfit;
  world.control().together([&] {
    try {
      tuning = ops::parse_gemm_tuning(text);
    } catch (const Error& error) {
      throw Error(error.code(),
                  format("hardware.gemm_tuning = \"{}\": {}; `trainer bench gemm --write-tuning` makes one", path,
                         error.what()));
    }
    misfit = device.kind() != device::Kind::cuda ? kOnCpu : ops::gemm_tuning_misfit(device, *tuning).value_or("");
  });
  // On all ranks or on none: what the run computes by is one table.
  const std::vector<std::string> misfits = world.control().gather(misfit);
  const auto first = std::find_if(misfits.begin(), misfits.end(), [](const std::string& why) { return !why.empty(); });
  if (first == misfits.end()) {
    ops::use_gemm_tuning(device, *tuning);
    return to_string(checkpoint::checksum_of(text));
  }
  const bool nowhere = std::all_of(misfits.begin(), misfits.end(), [](const auto& why) { return why == kOnCpu; });
  if (world.first() && nowhere) {
    log::info("hardware.gemm_tuning is of no use here: {}", kOnCpu);
  } else if (world.first()) {
    log::warning("{} is ignored: {}{}", path,
                 first == misfits.begin() ? "" : format("rank {}: ", first - misfits.begin()), *first);
  }
  return {};
}

bool writes_samples(const config::Config& config) {
  const config::Train& train = config.train;
  return !config.data.tokenizer.empty() &&
         (train.sample_interval > 0 || (train.sample_interval < 0 && !train.sample_prompt.empty()));
}

RunPlan plan_run(const config::Config& config, int64_t vocab, const Machine& machine, bool training) {
  const std::unique_ptr<device::Device> device = make_dry_device(machine);
  const std::unique_ptr<comm::World> world = comm::dry_world(machine.ranks, machine.rank);
  Trainer trainer(*device, *world, config, vocab, machine.compute, training);
  trainer.plan();
  std::optional<Generator> generator;
  if (writes_samples(config)) generator.emplace(trainer);
  RunPlan plan;
  plan.memory = trainer.memory();
  plan.memory["host"] = host_bytes(trainer, training);
  for (const auto& [category, bytes] : plan.memory)
    if (!machine.gpu || category != "host") plan.total += bytes;
  int64_t largest = -1;
  for (const auto& [key, program] : trainer.arena().programs()) {
    if (program.peak <= largest) continue;
    largest = program.peak;
    plan.arena_bound = program.live_bound;
    plan.activations = trainer.arena().peak_by_tag(key);
  }
  plan.parameters = trainer.store().parameter_count();
  plan.flops = flops_per_token(config.model, vocab, config.train.recompute);
  plan.executed_flops = trainer.meter().matmul_flops();
  plan.recomputed_flops = trainer.meter().recomputed_flops();
  // What the run's own code repeats, instead of the closed form: a recomputed block skips its last product.
  const double share = static_cast<double>(machine.ranks) / static_cast<double>(trainer.replicas());  // of one replica
  plan.flops.recomputed =
      plan.recomputed_flops * share / static_cast<double>(trainer.micro_batch() * config.model.seq_len);
  plan.comm_bytes = trainer.comm_bytes_per_step();
  return plan;
}

std::string to_string(const CommBytes& bytes) {
  std::string text;
  for (const auto& [axis, operations] : bytes)
    for (const auto& [operation, count] : operations)
      text += format("{}{} {} {} B", text.empty() ? "" : ", ", axis, operation, count);
  return text.empty() ? "none" : text;
}

std::string to_text(const RunPlan& plan, const config::Config& config, const Machine& machine) {
  const double rows = static_cast<double>(config.train.micro_batch * config.model.seq_len);
  std::string text = format("parameters            {:>12}  ({})\n", plan.parameters,
                            format_count(static_cast<double>(plan.parameters)));
  text += format("compute               {:>12}  ({}), {} threads, {}\n", name_of(machine.compute),
                 machine.compute_reason, machine.threads, device_text(machine));
  text += format("model FLOPs per token {:>12}  ({})\n", format_count(plan.flops.full()), kFlopsDefinition);
  text +=
      format("executed FLOPs        {:>12}  per rank and micro-step of {:.0f} tokens ({} repeated by recomputation)\n",
             format_count(plan.executed_flops), rows, format_count(plan.recomputed_flops));
  text += "memory\n";
  for (const auto& [category, bytes] : plan.memory)
    text += format("  {:<20}{:>12}\n", category, format_bytes(static_cast<double>(bytes)));
  text += format("  {:<20}{:>12}  of {} available\n", "total", format_bytes(static_cast<double>(plan.total)),
                 format_bytes(static_cast<double>(machine.memory_limit)));
  text +=
      format("activations at their peak (block {}, live bytes {})\n",
             format_bytes(static_cast<double>(plan.memory.contains("activations") ? plan.memory.at("activations") : 0)),
             format_bytes(static_cast<double>(plan.arena_bound)));
  std::vector<std::pair<int64_t, std::string>> tags;
  for (const auto& [tag, bytes] : plan.activations) tags.emplace_back(bytes, tag);
  std::sort(tags.rbegin(), tags.rend());
  for (const auto& [bytes, tag] : tags)
    text += format("  {:<20}{:>12}\n", tag, format_bytes(static_cast<double>(bytes)));
  text += format("communication of a step over {} rank{} (bytes on the wire, all ranks of a group)\n", machine.ranks,
                 machine.ranks == 1 ? "" : "s");
  for (const auto& [axis, operations] : plan.comm_bytes)
    for (const auto& [operation, bytes] : operations)
      text += format("  {:<20}{:>12}\n", axis + " " + operation, format_bytes(static_cast<double>(bytes)));
  if (plan.comm_bytes.empty()) text += "  none\n";
  return text;
}

void require_memory(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine) {
  if (plan.total <= machine.memory_limit) return;
  const auto largest = std::max_element(plan.memory.begin(), plan.memory.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  throw Error(
      Code::plan,
      format("the run needs {} of memory, {} are available ({}); the largest part is {} with {}. {}",
             format_bytes(static_cast<double>(plan.total)), format_bytes(static_cast<double>(machine.memory_limit)),
             config.hardware.memory_limit > 0 ? "hardware.memory_limit" : "what the system can give now",
             largest->first, format_bytes(static_cast<double>(largest->second)),
             change_that_fits(config, vocab, machine)));
}

}  // namespace trainer::train
