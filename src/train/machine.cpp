#include "train/machine.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "checkpoint/manifest.h"
#include "train/generate.h"
#include "train/units.h"

namespace trainer::train {
namespace {

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
    if (config.parallel.sequence_parallel && micro * config.model.seq_len % config.parallel.tensor != 0) continue;
    changed.train.micro_batch = micro;
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

}  // namespace

Machine choose_machine(const config::Config& config, const comm::World& world) {
  if (config.run.device == config::DeviceChoice::cuda)
    throw Error(Code::config, "run.device = \"cuda\": this program was built without CUDA; use \"auto\" or \"cpu\"");
  Machine machine;
  const int threads = device::default_threads(world.local_size()), share = device::share_of_cores(world.local_size());
  machine.threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : threads;
  if (config.run.threads == 0 && threads < share && world.local_rank() == 0)
    log::warning(
        "this process may use {} of the {} cores that are its share; start it with mpirun --bind-to none, or set "
        "run.threads",
        threads, share);
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
      machine.compute = machine.isa == device::Isa::amx ? DType::bf16 : DType::f32;
      break;
  }
  machine.compute_reason = config.precision.compute != config::Compute::automatic ? "asked for"
                           : machine.compute == DType::bf16                       ? "default: this CPU has AMX"
                                                            : "default: no matrix unit for bf16 here";
  machine.memory_limit = config.hardware.memory_limit > 0
                             ? static_cast<int64_t>(config.hardware.memory_limit * (1 << 30))
                             : available_memory() / world.local_size();
  return machine;
}

bool writes_samples(const config::Config& config) {
  return !config.data.tokenizer.empty() && (config.train.sample_interval > 0 || !config.train.sample_prompt.empty());
}

RunPlan plan_run(const config::Config& config, int64_t vocab, const Machine& machine, bool training) {
  device::DryDevice device(machine.threads, machine.isa);
  const std::unique_ptr<comm::World> world = comm::dry_world(machine.ranks, machine.rank);
  Trainer trainer(device, *world, config, vocab, machine.compute, training);
  trainer.plan();
  std::optional<Generator> generator;
  if (writes_samples(config)) generator.emplace(trainer);
  RunPlan plan;
  plan.memory = trainer.memory();
  plan.memory["host"] = host_bytes(trainer, training);
  for (const auto& [category, bytes] : plan.memory) plan.total += bytes;
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
      plan.recomputed_flops * share / static_cast<double>(config.train.micro_batch * config.model.seq_len);
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
                 machine.compute_reason, machine.threads, device::name_of(machine.isa));
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
