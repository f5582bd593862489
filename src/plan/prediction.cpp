#include "plan/prediction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/join.h"
#include "base/log.h"
#include "config/layout_choices.h"
#include "config/layouts.h"
#include "config/text.h"
#include "plan/plan_text.h"
#include "plan/update_time.h"

namespace trainer::plan {

void require_own_profile(const Cluster& cluster, const Machine& machine) {
  const std::string own = device_text(machine);
  if (!cluster.measured || cluster.device == own) return;
  throw Error(Code::config,
              format("{}: device.name = \"{}\": measured on devices other than this one, \"{}\"; measure here with "
                     "`trainer bench all --write-profile`, or plan for that machine with `trainer plan --cluster {}`",
                     cluster.path, cluster.device, own, cluster.path));
}

namespace {

/// Returns hardware.profile; empty if it is not set or lacks the rates of the run's types.
std::optional<Cluster> profile_of(const config::Config& config, const Machine& machine) {
  if (config.hardware.profile.empty()) return std::nullopt;
  Cluster cluster = read_cluster(config.hardware.profile);
  require_own_profile(cluster, machine);
  if (const std::optional<DType> type = type_without_peak(cluster, config, machine.compute)) {
    const std::string why = format("{}: device.tflops_{} is missing, but the run computes in {}", cluster.path,
                                   name_of(*type), name_of(*type));
    if (cluster.measured) throw Error(Code::config, why);
    log::info("{}; add it to get a predicted step time", why);
    return std::nullopt;
  }
  return cluster;
}

}  // namespace

RunPlan plan_and_time(const config::Config& config, int64_t vocab, const Machine& machine) {
  const std::optional<Cluster> cluster = profile_of(config, machine);
  const int64_t stages = config.parallel.stages, own = machine.rank * stages / machine.ranks;
  if (!cluster && stages == 1) return plan_run(config, vocab, machine, true);
  RunPlan plan;
  std::vector<int64_t> totals;
  std::vector<StageTime> times;
  CollectiveTime message;
  for (int64_t stage = 0; stage < stages; ++stage) {
    StepProgram step = record_step(config, vocab, stage == own ? machine : on_stage(machine, config, stage));
    totals.push_back(step.plan.total);
    if (cluster) times.push_back(price_parts(step, *cluster, machine.compute));
    if (cluster && stages > 1) message = message_time(*cluster, config, step.mesh, machine.compute);
    if (stage == own) plan = std::move(step.plan);
  }
  if (stages > 1) plan.stage_totals = totals;
  plan.bubble = setup::bubble_by_flops(config, vocab);
  if (!cluster) return plan;
  std::vector<const StageTime*> by_stage;
  for (const StageTime& time : times) by_stage.push_back(&time);
  const StepTime time = time_of_stages(by_stage, config::sharding_of(config).stages,
                                       config.train.global_batch / (config.train.micro_batch * plan.replicas), message);
  plan.step_seconds = time.total();
  plan.wait_seconds = time.exposed();
  plan.update_seconds = time.optimizer;
  if (stages > 1) plan.bubble = time.bubble;
  plan.predicted_by = cluster->path + (cluster->measured ? "" : format(" (data sheet of {})", cluster->device));
  return plan;
}

config::Config choose_strategy(comm::World& world, const config::Config& config,
                               const std::optional<config::Config>& trained, int64_t vocab, const Machine& machine) {
  constexpr size_t kShown = 3;
  std::string text;
  world.control().run_on_all_ranks([&] {
    if (world.first()) text = cluster_text(config.hardware.profile);
  });
  world.control().broadcast(text);
  // All ranks plan for the least free memory and the most threads, each of which adds memory.
  std::array<int64_t, 2> limit_and_threads{machine.memory_limit, machine.threads};
  const std::string own(reinterpret_cast<const char*>(&limit_and_threads), sizeof limit_and_threads);
  for (const std::string& bytes : world.control().gather(own)) {
    std::array<int64_t, 2> theirs;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    limit_and_threads = {std::min(limit_and_threads[0], theirs[0]), std::max(limit_and_threads[1], theirs[1])};
  }
  const auto [least, threads] = limit_and_threads;
  config::Config chosen = config;
  world.control().run_on_all_ranks([&] {
    const Cluster cluster = parse_cluster(text, config.hardware.profile);
    require_own_profile(cluster, machine);
    PlanRequest request{.config = config,
                        .vocab = vocab,
                        .devices = world.size(),
                        .own = {machine.isa, static_cast<int>(threads)},
                        .threads = 1,
                        .most_priced = 24,
                        .shown = kShown};
    request.config.origins.erase("parallel.strategy");
    // The run must also fit in the memory that is free now. The plan may fill it, and ranks of CPUs need slightly
    // different amounts.
    double limit = static_cast<double>(least) * (cluster.cpu ? 0.99 : 1);
    if (config.hardware.memory_limit == 0) limit = std::min(limit, cluster.memory_bytes);
    request.config.hardware.memory_limit = std::max(1.0, limit) / (1 << 30);
    if (!config::is_given(config, "precision.compute"))
      request.config.precision.compute = machine.compute == DType::bf16  ? config::Compute::bf16
                                         : machine.compute == DType::f64 ? config::Compute::fp64
                                                                         : config::Compute::fp32;
    Plan plan;
    std::optional<config::Config> kept;
    if (trained) kept = config::with_layout_of(*trained, request.config, request.devices);
    if (kept) {
      PlanRequest same = request;
      same.config = *kept;
      plan = plan_layouts(same, cluster);
    }
    const bool fits = !plan.runs.empty();
    if (!fits) plan = plan_layouts(request, cluster);
    if (plan.runs.empty()) throw Error(Code::plan, why_nothing_fits(plan));
    chosen = plan.runs.front().config;
    chosen.precision = config.precision;
    chosen.hardware = config.hardware;
    std::vector<std::string> changes;
    if (trained) changes = config::layout_changes(*trained, chosen);
    if (!world.first()) return;
    log::info("strategy \"auto\" {} {} with {}, micro_batch = {} and recomputation {}:\n{}",
              trained && changes.empty() ? "keeps the run's layout," : "chose", name_of(chosen.parallel.strategy),
              config::layout_text(chosen), chosen.train.micro_batch, config::recompute_text(chosen.train),
              to_text(plan, cluster, kShown));
    if (!changes.empty())
      log::warning("results will round differently: the run was trained until now in a different layout ({}), {}",
                   fmt::join(changes, ", "),
                   fits   ? "because of the keys that are set now"
                   : kept ? "which does not fit in memory"
                          : "which is not one for these ranks and keys");
  });
  return chosen;
}

}  // namespace trainer::plan
