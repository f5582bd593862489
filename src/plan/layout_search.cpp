#include "plan/layout_search.h"

#include <algorithm>

#include "config/layouts.h"
#include "config/tags.h"

namespace trainer::plan {
namespace {

using config::Config;

/// Puts an axis into one of a spread's or linear's sets, or into none.
void put(Spread& spread, AxisSet axis, int choice) {
  spread = {spread.rows & ~axis, spread.cols & ~axis};
  if (choice < 2) (choice == 0 ? spread.rows : spread.cols) |= axis;
}
void put(LinearSharding& l, AxisSet axis, int choice) {
  for (AxisSet* set : {&l.rows, &l.cols, &l.contraction, &l.flat}) *set &= ~axis;
  if (choice == 0 || choice == 3) l.rows |= axis;
  if (choice == 1) l.cols |= axis;
  if (choice == 2) l.contraction |= axis;
  if (choice == 3) l.flat |= axis;
}
void put(sharding::VocabSpread& table, AxisSet axis, int choice) {
  for (AxisSet* set : {&table.vocab, &table.hidden, &table.flat}) *set &= ~axis;
  if (choice < 3) (choice == 0 ? table.vocab : choice == 1 ? table.hidden : table.flat) |= axis;
}
constexpr int kSpreadChoices = 3, kLinearChoices = 5, kTableChoices = 4;

}  // namespace

double LayoutSearch::estimate(const Config& config) {
  const ModelSharding layout = config::sharding_of(config);
  LayerCosts costs = costs_of(config, layout);
  return estimate(costs, layout);
}

double LayoutSearch::estimate(LayerCosts& costs, const ModelSharding& layout) const {
  constexpr double kLast = 1e6;
  return costs.step_seconds(layout) * (costs.least_bytes(layout) > memory_limit_ ? kLast : 1);
}

void LayoutSearch::find_tags(const Config& config, size_t most_axes, std::vector<PlannedRun>& runs) {
  const int64_t ranks = config::ranks_of_replica(config);
  for (const std::vector<int64_t>& extents : config::axis_lists(ranks, cluster_.devices_per_node)) {
    if (extents.size() > most_axes) continue;
    Config trial = config;
    trial.parallel.axes = extents;
    LayerCosts costs = costs_of(trial, config::sharding_of(trial));
    const std::optional<ModelSharding> found = costs.best(memory_limit_);
    if (!found) continue;
    config::set_tables(trial, *found);
    if (!config::layout_fits(trial)) continue;
    runs.push_back(planned(trial));
    runs.back().estimate = estimate(costs, *found);
  }
}

std::vector<PlannedRun> LayoutSearch::neighbours(const Config& config) {
  const ModelSharding layout = config::sharding_of(config);
  LayerCosts costs = costs_of(config, layout);
  std::vector<PlannedRun> runs;
  const auto add = [&](ModelSharding other) {
    if (layout.head == layout.layers.back().stream) other.head = other.layers.back().stream;  // the head follows
    if (first_violation(other, config::extents_of(config))) return;
    Config trial = config;
    config::set_tables(trial, other);
    runs.push_back(planned(trial));
    runs.back().estimate = estimate(costs, other);
  };
  // In all entries of layers: one axis in each pair of a spread and a linear that exchange a tensor, or in the table.
  for (size_t a = 1; a < layout.axes.size(); ++a) {
    const AxisSet axis = AxisSet{1} << a;
    for (const Site site : sharding::kSites)
      for (const bool on_stream : {true, false})
        for (int spread = 0; spread < kSpreadChoices; ++spread)
          for (int linear = 0; linear < kLinearChoices; ++linear) {
            ModelSharding other = layout;
            for (sharding::Layer& layer : other.layers) {
              put(on_stream ? layer.stream : layer.inside(site), axis, spread);
              put(layer.at(site), axis, linear);
            }
            add(std::move(other));
          }
    for (int choice = 0; choice < kTableChoices; ++choice) {
      ModelSharding other = layout;
      put(other.table, axis, choice);
      add(std::move(other));
    }
  }
  ModelSharding other = layout;  // the other schedule: GEMMs step by step, or at once
  for (sharding::Layer& layer : other.layers)
    for (LinearSharding& l : layer.linears)
      l.schedule =
          l.schedule == sharding::GemmSchedule::ring ? sharding::GemmSchedule::at_once : sharding::GemmSchedule::ring;
  add(std::move(other));
  std::ranges::stable_sort(runs, {}, &PlannedRun::estimate);
  return runs;
}

}  // namespace trainer::plan
