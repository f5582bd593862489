#include "setup/run_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "base/join.h"
#include "base/units.h"
#include "checkpoint/manifest.h"
#include "checkpoint/param_slices.h"
#include "checkpoint/shard.h"
#include "comm/gpu_transport.h"
#include "config/context.h"
#include "config/layouts.h"
#include "config/stages.h"
#include "offload/make.h"
#include "optim/make.h"
#include "setup/offload_memory.h"
#include "train/generate.h"

namespace trainer::setup {
namespace {

/// Returns the host memory of a run other than its tensors: the tables of mesh::Runs and of recorded programs, the
/// threads' stacks, the order of a micro-batch's tokens, and the memory of a save, which takes one chunk and a copy of
/// the Runs for weights and each moment. A fixed amount covers logs and everything else.
int64_t host_bytes(train::ModelRunner& runner, bool training) {
  constexpr int64_t kStack = 16 << 10, kFixed = 240 << 10;
  int64_t runs = 0, largest = 0, recorded = 0;
  for (const params::Param& param : runner.store().params()) {
    runs += static_cast<int64_t>(param.runs.size() * sizeof(mesh::Run));
    largest = std::max(largest, param.count() * size_of(runner.store().state_dtype()));
  }
  for (const auto& [key, program] : runner.arena().programs())
    recorded += static_cast<int64_t>(program.intervals.size() * sizeof(Arena::Interval));
  const int64_t save = training ? 3 * runs + std::min(largest, checkpoint::kChunkBytes) : 0;
  const int64_t rows = runner.micro_batch() * runner.config().model.seq_len;
  const int64_t order = training ? (rows + runner.vocab()) * static_cast<int64_t>(sizeof(int32_t)) : 0;
  return runs + recorded + save + order + runner.device().threads() * kStack + kFixed;
}

int64_t host_total(const RunPlan& plan) {
  int64_t total = 0;
  for (const auto& [category, bytes] : plan.memory) total += category.starts_with("host") ? bytes : 0;
  return total;
}

/// Adds the copy of weights and optimizer state that a background save writes from, if it fits.
void add_snapshot(RunPlan& plan, train::Trainer& trainer, const Machine& machine) {
  const int64_t bytes = checkpoint::bytes_of_copies(checkpoint::slices_to_save(trainer.store(), /*states=*/true));
  const int64_t limit = machine.gpu ? machine.host_limit : machine.memory_limit;
  if ((machine.gpu ? host_total(plan) : plan.total) + bytes > limit && limit > 0) return;
  plan.memory[kSnapshotMemory] = bytes;
  if (!machine.gpu) plan.total += bytes;
}

/// Returns the number of micro-batches of a step. On an unknown number of ranks there is one replica.
int64_t micro_batches(const config::Config& config) {
  return config.train.global_batch / (config.train.micro_batch * std::max<int64_t>(1, config.parallel.data));
}

/// Returns the smallest change to the micro-batch and recomputation that makes the run fit; empty: there is none.
std::string working_change_that_fits(const config::Config& config, int64_t vocab, const Machine& machine) {
  const auto fits = [&](const config::Config& given) {
    config::Config changed = given;
    if (!config::is_given(changed, "parallel.stage_layers")) changed.parallel.stage_layers.clear();
    config::choose_stage_layers(changed, vocab);
    const std::vector<RunPlan> plans = config.parallel.stages > 1
                                           ? plan_stages(changed, vocab, machine)
                                           : std::vector<RunPlan>{plan_run(changed, vocab, machine, true)};
    return std::ranges::all_of(plans, [&](const RunPlan& plan) { return plan.total <= machine.memory_limit; });
  };
  config::Config changed = config;
  for (int64_t micro = config.train.micro_batch; micro >= 1; --micro) {
    const int64_t round = micro * std::max<int64_t>(1, config.parallel.data);
    if (config.train.global_batch % round != 0) continue;
    if (config.parallel.chunks > 1 && config.train.global_batch / round % config.parallel.stages != 0) continue;
    changed.train.micro_batch = micro;
    if (!config::layout_fits(changed)) continue;
    for (const auto mode : {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
      if (mode < config.train.recompute) continue;
      changed.train.recompute = mode;
      if (!fits(changed)) continue;
      const bool whole = mode != config::Recompute::full || config.train.recompute == mode;
      const int64_t all = config.model.n_layer,
                    layers = whole ? all : fewest_recomputed_layers(changed, 1, all, all / 2, fits);
      if (layers == all)
        return format("train.micro_batch = {} with train.recompute = \"{}\" fits", micro,
                      config::kRecomputeNames[static_cast<size_t>(mode)]);
      return format("train.micro_batch = {} with train.recompute = \"selective\" and train.recompute_layers = {} fits",
                    micro, layers);
    }
  }
  return {};
}

/// Returns the change to suggest. Samples are left out first, since training does not need them. If offload is
/// configured, its settings are tried next; if not, offload is the last resort, after smaller micro-batches and more
/// recomputation.
std::string change_that_fits(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine) {
  if (writes_samples(config)) {
    config::Config changed = config;
    changed.train.sample_interval = 0;
    if (plan_run(changed, vocab, machine, true).total <= machine.memory_limit)
      return format(
          "train.sample_interval = 0 fits: sampling train.sample_prompt takes a key-value cache (kv_cache) of {}",
          format_bytes(static_cast<double>(plan.memory.at("kv_cache"))));
  }
  const bool offloads = config.offload.optimizer != config::OffloadOptimizer::none;
  std::string change = offloads ? offload_change_that_fits(plan, config, vocab, machine) : "";
  if (change.empty()) change = working_change_that_fits(config, vocab, machine);
  if (change.empty() && !offloads) change = offload_change_that_fits(plan, config, vocab, machine);
  if (!change.empty()) return change;
  if (config::shares_tokens(config) && config.parallel.context_kv == config::Panels::gather) {
    config::Config changed = config;
    changed.parallel.context_kv = config::Panels::ring;
    if (plan_run(changed, vocab, machine, true).total <= machine.memory_limit)
      return "parallel.context_kv = \"ring\" fits";
  }
  if (config.parallel.context > 1)
    return format(
        "not even train.micro_batch = 1 with train.recompute = \"full\" fits: share sequences among more ranks "
        "(parallel.context = {}), or make the model smaller",
        2 * config.parallel.context);
  return "not even train.micro_batch = 1 with train.recompute = \"full\" fits: make the model smaller, or split it "
         "over more ranks";
}

/// Returns RunPlan::backward_peaks, which is empty unless each layer is one group of parameters.
std::optional<std::array<int64_t, 2>> backward_peaks(const Arena& arena, const config::Config& config) {
  for (const auto& [key, program] : arena.programs()) {
    std::vector<int64_t> placed;  // the times at which the groups' gradients are placed
    for (const Arena::Interval& item : program.intervals)
      if (item.kept) placed.push_back(item.first);
    if (placed.empty()) continue;
    // A tied table is placed first, the head's other parameters next, an embedding of its own last.
    const size_t layers = static_cast<size_t>(config.model.n_layer),
                 last = config.model.tie_embeddings.value_or(true) ? 2 : 1;
    if (placed.size() != layers + 2 || layers < 2) return std::nullopt;
    return std::array{arena.most_alive(key, 0, placed[last + 1]),
                      arena.most_alive(key, placed[last + layers - 2], std::numeric_limits<int64_t>::max())};
  }
  return std::nullopt;
}

/// Returns what a planned model needs, and the FLOPs of its programs.
RunPlan plan_of(train::ModelRunner& runner, int64_t vocab, const Machine& machine, bool training) {
  const config::Config& config = runner.config();
  std::optional<train::Generator> generator;
  if (writes_samples(config)) generator.emplace(runner);
  RunPlan plan;
  plan.memory = runner.memory();
  plan.memory["host"] = host_bytes(runner, training);
  for (const auto& [category, bytes] : plan.memory)
    if (!machine.gpu || !category.starts_with("host")) plan.total += bytes;
  plan.replicas = runner.store().replicas().count();
  int64_t largest = -1;
  for (const auto& [key, program] : runner.arena().programs()) {
    BytesByCategory tags = runner.arena().peak_by_tag(key);
    const auto frames = tags.find("frames");
    const int64_t in_frames = frames == tags.end() ? 0 : frames->second;
    if (in_frames + program.peak <= largest) continue;
    largest = in_frames + program.peak;
    plan.arena_bound = in_frames + program.live_bound;
    plan.activations = std::move(tags);
  }
  plan.gradients_in_activations = runner.store().gradients_in_arena();
  if (plan.gradients_in_activations) plan.backward_peaks = backward_peaks(runner.arena(), config);
  plan.parameters = runner.parameter_count();
  plan.flops = config::flops_per_token(config.model, vocab, recomputed_layers(config));
  plan.executed_flops = runner.meter().matmul_flops();
  plan.recomputed_flops = runner.meter().recomputed_flops();
  // The recomputed FLOPs are those that the dry run counted, since the closed form does not know that a recomputed
  // block skips its last GEMM. Other stages recompute other layers.
  if (config.parallel.stages > 1) return plan;
  const double share = static_cast<double>(machine.ranks) / static_cast<double>(runner.replicas());  // per replica
  plan.flops.recomputed =
      plan.recomputed_flops * share / static_cast<double>(runner.micro_batch() * config.model.seq_len);
  return plan;
}

}  // namespace

int64_t fewest_recomputed_layers(config::Config config, int64_t least, int64_t most, int64_t guess,
                                 const std::function<bool(const config::Config&)>& fits) {
  config.train.recompute = config::Recompute::selective;
  for (int64_t layers = guess, step = 1; least < most; step *= 2) {
    config.train.recompute_layers = layers = std::clamp(layers, least, most - 1);
    const bool enough = fits(config);
    (enough ? most : least) = enough ? layers : layers + 1;
    const int64_t next = std::min(step, (most - least + 1) / 2);
    layers = enough ? most - next : least + next - 1;
  }
  return most;
}

bool writes_samples(const config::Config& config) {
  const config::Train& train = config.train;
  return !config.data.tokenizer.empty() &&
         (train.sample_interval > 0 || (train.sample_interval < 0 && !train.sample_prompt.empty()));
}

RunPlan overlap_if_it_fits(config::Config& config, const Machine& machine, const std::function<RunPlan()>& plan) {
  RunPlan own = plan();
  if (own.total <= machine.memory_limit || machine.gpu || !optim::overlaps_forward(config, machine.threads)) return own;
  config.optim.overlap = false;
  return plan();
}

RunPlan plan_run(const config::Config& config, int64_t vocab, const Machine& machine, bool training,
                 const train::ProgramRecorders& recorders) {
  const std::unique_ptr<device::Device> device = make_dry_device(machine);
  const std::unique_ptr<comm::World> world = comm::dry_world(machine.ranks, machine.rank);
  const std::unique_ptr<comm::World> gpu_world =
      machine.nccl ? comm::dry_nccl_world(*world, *device, static_cast<int>(config.parallel.lanes)) : nullptr;
  comm::World& ranks = gpu_world ? *gpu_world : *world;
  if (!training) {
    train::ModelRunner runner(*device, ranks, config, vocab, machine.compute);
    runner.plan();
    return plan_of(runner, vocab, machine, /*training=*/false);
  }
  train::Trainer trainer(*device, ranks, config, vocab, machine.compute);
  trainer.plan(recorders);
  RunPlan plan = plan_of(trainer, vocab, machine, /*training=*/true);
  if (config.checkpoint.async) add_snapshot(plan, trainer, machine);
  plan.comm_bytes = trainer.comm_bytes_per_step();
  if (const offload::Engine* engine = trainer.offload(); engine == nullptr)
    plan.update = trainer.update_cost();
  else
    plan.offload = OffloadWork{.placement = engine->placement(),
                               .chosen = offload::is_chosen(config.offload),
                               .subgroups = engine->subgroups(),
                               .sizes = engine->sizes()};
  return plan;
}

std::string update_text(const train::UpdateCost& update, double seconds) {
  std::string text;
  if (update.flops > 0)
    text += format("{} FLOPs in GEMMs, not counted in the model's FLOPs, ", format_count(update.flops));
  text += format("{} of memory traffic", format_bytes(update.bytes));
  if (update.sent > 0) text += format(" and {} sent", format_bytes(update.sent));
  text += " per rank";
  if (std::isfinite(seconds)) text += format(", {:.4g} ms predicted", seconds * 1e3);
  return text;
}

Machine on_stage(Machine machine, const config::Config& config, int64_t stage) {
  machine.rank = static_cast<int>(stage * machine.ranks / config.parallel.stages);  // ranks of a stage are consecutive
  return machine;
}

std::vector<RunPlan> plan_stages(const config::Config& config, int64_t vocab, const Machine& machine) {
  std::vector<RunPlan> plans;
  for (int64_t stage = 0; stage < config.parallel.stages; ++stage)
    plans.push_back(plan_run(config, vocab, on_stage(machine, config, stage), true));
  return plans;
}

double bubble_by_flops(const config::Config& config, int64_t vocab) {
  const sharding::Stages stages = config::sharding_of(config).stages;
  if (stages.count == 1) return kUnknown;
  const bool split = stages.schedule == sharding::PipelineSchedule::zb_h1;  // passes for weight gradients, of layers
  std::vector<double> forward, backward, weights;                           // by chunk
  int64_t layer = 0;
  for (const int64_t layers : stages.layers) {
    double own = 0, again = 0;
    for (const int64_t end = layer + layers; layer < end; ++layer) {
      const double flops = config::layer_flops(config.model, layer);
      own += flops;
      if (recompute_of(config.train, layer) == config::Recompute::full) again += flops;
    }
    weights.push_back(split ? own : 0);
    if (weights.size() == stages.layers.size()) own += 2.0 * static_cast<double>(vocab * config.model.d_model);
    forward.push_back(own);
    backward.push_back(2 * own + again - weights.back());
  }
  double work = 0;
  const auto seconds = [&](const sharding::Action& action) {
    const auto chunk = static_cast<size_t>(action.chunk);
    const double own = (action.has(sharding::kForward) ? forward[chunk] : 0) +
                       (action.has(sharding::kBackward) ? backward[chunk] : 0) +
                       (action.has(sharding::kWeights) ? weights[chunk] : 0);
    work += own;
    return own;
  };
  const std::vector<double> ends = simulate(lists_of(stages, micro_batches(config)), stages, seconds);
  return 1 - work / (std::ranges::max(ends) * static_cast<double>(stages.count));
}

std::vector<std::string> stage_lines(const config::Config& config, const RunPlan& plan) {
  const config::Parallel& p = config.parallel;
  if (p.stages == 1) return {};
  const auto most = std::ranges::max_element(plan.stage_totals);
  std::vector<std::string> others;
  for (auto total = plan.stage_totals.begin(); total != plan.stage_totals.end(); ++total)
    if (total != most) others.push_back(format_bytes(static_cast<double>(*total)));
  return {format("layout     {}: {}", config::layout_text(config),
                 counted(config::ranks_of_replica(config) * std::max<int64_t>(1, p.data), "rank")),
          format("stages     layers {}, head on the last; {} micro-batches per step, bubble {} predicted{}",
                 fmt::join(p.stage_layers, " "), micro_batches(config), format_percent(plan.bubble),
                 std::isfinite(plan.step_seconds) ? "" : " by FLOPs"),
          format("memory     per rank {} on stage {} (most), {} on the {}", format_bytes(static_cast<double>(*most)),
                 most - plan.stage_totals.begin(), fmt::join(others, ", "), others.size() == 1 ? "other" : "others")};
}

std::string exchange_text(const config::Config& config, DType compute) {
  const config::Model& m = config.model;
  const int64_t ranks = m.n_expert == 0 ? 1 : config::expert_ranks(config);
  if (ranks == 1) return {};
  const sharding::ModelSharding s = config::sharding_of(config);
  const auto of = std::ranges::find_if(s.layers, [&](const auto& layer) { return s.ranks(layer.experts) == ranks; });
  const int64_t rows = config.train.micro_batch * m.seq_len / s.depth() / s.ranks(of->at(sharding::Site::up).rows),
                sent = rows * m.experts_per_token * (ranks - 1) / ranks;
  // x, y and their gradients; weights and theirs. Recomputation sends x and weights again.
  const int64_t last = m.n_layer / m.moe_every * m.moe_every - 1,  // the last layer with experts
      again = recompute_of(config.train, last) == config::Recompute::full ? 1 : 0,
                bytes = (4 + again) * m.d_model * size_of(compute) + (2 + again) * size_of(accumulator_of(compute));
  return format("{} experts on each rank; exchange {} per rank, layer and micro-batch", m.n_expert / ranks,
                format_bytes(static_cast<double>(sent * bytes)));
}

std::string few_micro_batches_text(const config::Config& config, const RunPlan& plan) {
  const int64_t stages = config.parallel.stages, count = micro_batches(config);
  if (count >= 2 * (stages - 1) || plan.bubble <= 1.0 / 3) return {};
  return format(
      "parallel.stages = {} with {} micro-batch{} per step: {} of the time is bubble; raise train.global_batch or "
      "lower train.micro_batch",
      stages, count, count == 1 ? "" : "es", format_percent(plan.bubble));
}

std::string to_text(const RunPlan& plan, const config::Config& config, const Machine& machine) {
  const double rows = static_cast<double>(config.train.micro_batch * config.model.seq_len);
  std::string text = format("parameters            {:>12}  ({})\n", plan.parameters, format_count(plan.parameters));
  text += format("compute               {:>12}  ({}), {} threads, {}\n", name_of(machine.compute),
                 machine.compute_reason, machine.threads, device_text(machine));
  const int64_t replicas = plan.replicas, at_once = config.train.micro_batch * replicas;
  text += format("global_batch          {:>12}  = micro_batch {} x accumulation {} x data {}, on {}{}\n",
                 config.train.global_batch, config.train.micro_batch, config.train.global_batch / at_once, replicas,
                 counted(machine.ranks, "rank"),
                 replicas == 1 && config.parallel.zero_stage == 1
                     ? "; zero_stage requires several replicas: set parallel.data = N to plan for N"
                     : "");
  text += format("model FLOPs per token {:>12}  ({})\n", format_count(plan.flops.full()), config::kFlopsDefinition);
  text +=
      format("executed FLOPs        {:>12}  per rank and micro-step of {:.0f} tokens ({} repeated by recomputation)\n",
             format_count(plan.executed_flops), rows, format_count(plan.recomputed_flops));
  if (plan.update.bytes > 0)
    text += format("update                {}\n", update_text(plan.update, plan.update_seconds));
  if (std::isfinite(plan.step_seconds))
    text +=
        format("step                  {:>9.4g} ms  ({:.4g} ms of it waiting for communication), predicted from {}\n",
               plan.step_seconds * 1e3, plan.wait_seconds * 1e3, plan.predicted_by);
  text += "memory per rank\n";
  for (const auto& [category, bytes] : plan.memory)
    text += format("  {:<20}{:>12}{}\n", category, format_bytes(bytes),
                   category == "activations" && plan.gradients_in_activations ? "  weight gradients included" : "");
  text += format("  {:<20}{:>12}  of {} available\n", "total", format_bytes(plan.total),
                 format_bytes(machine.memory_limit));
  text +=
      format("activations at their peak (arena {}, live tensors {})\n",
             format_bytes(static_cast<double>(plan.memory.contains("activations") ? plan.memory.at("activations") : 0)),
             format_bytes(plan.arena_bound));
  std::vector<std::pair<int64_t, std::string>> tags;
  for (const auto& [tag, bytes] : plan.activations) tags.emplace_back(bytes, tag);
  std::sort(tags.rbegin(), tags.rend());
  for (const auto& [bytes, tag] : tags) text += format("  {:<20}{:>12}\n", tag, format_bytes(bytes));
  text += format("communication of a step over {} (bytes on the wire, summed over the ranks of a group)\n",
                 counted(machine.ranks, "rank"));
  for (const auto& [axis, operations] : plan.comm_bytes)
    for (const auto& [operation, bytes] : operations)
      text += format("  {:<20}{:>12}\n", axis + " " + operation, format_bytes(bytes));
  if (plan.comm_bytes.empty()) text += "  none\n";
  return text;
}

void require_memory(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine,
                    const std::function<std::string()>& advice) {
  const auto refuse = [&](const char* memory, int64_t needed, int64_t available, const std::string& limit,
                          auto&& counts, const std::string& change) {
    const std::pair<const std::string, int64_t>* largest = nullptr;
    for (const auto& entry : plan.memory)
      if (counts(entry.first) && (largest == nullptr || entry.second > largest->second)) largest = &entry;
    const auto [needs, has] = format_bytes_apart(static_cast<double>(needed), static_cast<double>(available));
    throw Error(Code::plan, format("{} needs {} of {}, but only {} is available ({}); the largest part is {}, {}; {}",
                                   advice ? "the model" : "the run", needs, memory, has, limit, largest->first,
                                   format_bytes(largest->second), change));
  };
  const std::string now = "the memory available now";
  const std::string of_host =
      machine.group_limited ? "the memory that the cgroup of this job or container leaves" : now;
  const auto is_of_host = [](const std::string& category) { return category.starts_with("host"); };
  const int64_t on_host = host_total(plan);
  if (machine.gpu && machine.host_limit > 0 && on_host > machine.host_limit) {
    const std::string change = advice ? advice() : offload_change_that_fits(plan, config, vocab, machine);
    refuse("host memory", on_host, machine.host_limit, "this rank's share of " + of_host, is_of_host,
           !change.empty() ? change
                           : "the optimizer state fits neither on the device nor in host memory: split it over more "
                             "replicas (parallel.zero_stage = 1), or the model over more ranks");
  }
  if (plan.total > machine.memory_limit)
    refuse(
        "memory", plan.total, machine.memory_limit,
        config.hardware.memory_limit > 0 ? "hardware.memory_limit"
        : machine.gpu                    ? now
                                         : of_host,
        [&](const std::string& category) { return !machine.gpu || !is_of_host(category); },
        advice ? advice() : change_that_fits(plan, config, vocab, machine));
}

}  // namespace trainer::setup
