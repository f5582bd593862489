// Pricing of several stages. Stages with the same layers at the same end of the model run the same programs, so one of
// them is recorded; in deep models, with one and with two layers in each chunk.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "config/layouts.h"
#include "config/stages.h"
#include "plan/pricing.h"
#include "plan/update_time.h"
#include "setup/run_plan.h"

namespace trainer::plan {
namespace {

using config::Config;

/// Stages that run the same programs.
struct Alike {
  int64_t first = 0, last = 0;  // the first and the last one
  std::vector<int64_t> layers;  // number in each chunk
  StageTime time;

  int64_t total() const { return std::reduce(layers.begin(), layers.end()); }
};

/// Returns groups of stages, and the group of each stage. `alike`: all layers are.
std::pair<std::vector<Alike>, std::vector<size_t>> groups_of(const sharding::Stages& stages, bool alike) {
  std::vector<Alike> groups;
  std::vector<size_t> group_of;
  const auto end_of = [&](int64_t stage) { return std::pair(stage == 0, stage == stages.count - 1); };
  for (int64_t stage = 0; stage < stages.count; ++stage) {
    std::vector<int64_t> layers;
    for (int64_t chunk = stage; chunk <= stages.last_chunk(); chunk += stages.count)
      layers.push_back(stages.layers[static_cast<size_t>(chunk)]);
    auto group = std::ranges::find_if(groups, [&](const Alike& each) {
      return alike && each.layers == layers && end_of(each.first) == end_of(stage);
    });
    if (group == groups.end()) group = groups.insert(group, {.first = stage, .layers = std::move(layers), .time = {}});
    group->last = stage;
    group_of.push_back(static_cast<size_t>(group - groups.begin()));
  }
  return {std::move(groups), std::move(group_of)};
}

}  // namespace

void Pricer::add_stage_totals(PlannedRun& run) const {
  for (const RunPlan& plan : setup::plan_stages(run.config, vocab_, machine_))
    run.plan.stage_totals.push_back(on_device(plan));
  run.plan.bubble = run.time.bubble;
  run.plan.step_seconds = run.time.total();
}

void Pricer::price_stages(PlannedRun& run, Depth depth) const {
  config::Parallel& p = run.config.parallel;
  if (!config::is_given(run.config, "parallel.stage_layers")) p.stage_layers.clear();
  config::choose_stage_layers(run.config, vocab_);
  const sharding::Stages stages = config::sharding_of(run.config).stages;
  const bool alike = has_equal_layers(run.config);
  run.whole = depth == Depth::all || !alike || std::ranges::max(stages.layers) <= 2 ||
              run.config.offload.optimizer != config::OffloadOptimizer::none;
  auto [groups, group_of] = groups_of(stages, alike);

  const auto with_layers = [&](int64_t of_chunk) {
    Config config = run.config;
    config.model.n_layer = of_chunk * stages.count * stages.chunks;
    config.parallel.stage_layers.assign(static_cast<size_t>(stages.count * stages.chunks), of_chunk);
    if (config.parallel.cache_layers > 0) config.parallel.cache_layers = config.model.n_layer;
    return config;
  };
  const Config one = with_layers(1), two = with_layers(2);
  struct Recorded {
    StepProgram less, more;  // with one and two layers in each chunk
    StageTime of_less, of_more;
  };
  std::map<int64_t, Recorded> recorded;  // by stage
  const auto recorded_at = [&](int64_t stage) -> const Recorded& {
    const auto [found, is_new] = recorded.try_emplace(stage);
    Recorded& r = found->second;
    if (!is_new) return r;
    r.less = record(one, stage);
    r.more = record(two, stage);
    const double factor = static_cast<double>(run.config.model.n_layer - one.model.n_layer) /
                          static_cast<double>(two.model.n_layer - one.model.n_layer);
    for (size_t i = 0; i < r.less.parts.size(); ++i)
      deepen_scalars(r.less.parts[i].program, r.more.parts[i].program, factor);
    r.of_less = price_parts(r.less, cluster_, machine_.compute);
    r.of_more = price_parts(r.more, cluster_, machine_.compute);
    return r;
  };
  const auto like = [&](int64_t stage) { return stage == 0 || stage == stages.count - 1 ? stage : int64_t{1}; };
  const auto factor_of = [&](const Alike& group) {
    return static_cast<double>(group.total() - stages.chunks) / static_cast<double>(stages.chunks);
  };
  const auto extrapolated = [&](const Alike& group) {
    const Recorded& r = recorded_at(like(group.first));
    StageTime time = r.of_less;
    for (size_t i = 0; i < time.parts.size(); ++i) {
      const auto chunk = static_cast<size_t>(time.parts[i].kind.chunk / stages.count);
      time.parts[i].time =
          extrapolate(r.of_less.parts[i].time, r.of_more.parts[i].time, static_cast<double>(group.layers[chunk] - 1));
    }
    time.rest = extrapolate(r.of_less.rest, r.of_more.rest, factor_of(group));
    // The matrices of the busiest rank are not proportional to the layers.
    const auto orthogonalization = [&](const Config& config, int64_t layers) {
      Config of_stage = config;
      of_stage.model.n_layer = layers * stages.count;
      return cluster_.skew * orthogonalization_seconds(cluster_, of_stage, machine_.compute);
    };
    const double less = orthogonalization(one, stages.chunks), more = orthogonalization(two, 2 * stages.chunks);
    time.rest.optimizer += orthogonalization(run.config, group.total()) - less - factor_of(group) * (more - less);
    return time;
  };
  std::optional<RunPlan> largest;
  const auto compare = [&](RunPlan&& plan) {
    if (!largest || on_device(plan) > on_device(*largest)) largest = std::move(plan);
  };
  std::optional<mesh::MeshShape> mesh;
  for (Alike& group : groups) {
    // With 1f1b the first of these stages has the most micro-batches in flight; with zb-h1 it may be the last one.
    const bool ascends = stages.schedule == sharding::PipelineSchedule::zb_h1 && group.last != group.first;
    if (run.whole) {
      StepProgram step = record(run.config, group.first);
      group.time = price_parts(step, cluster_, machine_.compute);
      mesh = step.mesh;
      compare(std::move(step.plan));
      if (ascends) compare(std::move(record(run.config, group.last).plan));
    } else {
      group.time = extrapolated(group);
      mesh = recorded.begin()->second.less.mesh;
      for (const int64_t stage : {like(group.first), ascends ? group.last : like(group.first)})
        compare(on_line(recorded_at(stage).less.plan, recorded_at(stage).more.plan, factor_of(group)));
    }
  }
  std::vector<const StageTime*> times;
  for (const size_t group : group_of) times.push_back(&groups[group].time);
  run.time = time_of_stages(times, stages, run.config.train.global_batch / (run.config.train.micro_batch * p.data),
                            message_time(cluster_, run.config, *mesh, machine_.compute));
  run.plan = std::move(*largest);
  run.plan.flops = config::flops_per_token(run.config.model, vocab_, recomputed_layers(run.config));
}

}  // namespace trainer::plan
