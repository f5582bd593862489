#include "plan/layout_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "config/layouts.h"
#include "config/sharding_spec.h"

namespace trainer::plan {
namespace {

using config::Config;

/// Assigns an axis to one of the axis sets of a spread or linear, or to none. A spread has the first two.
enum Put : int { kRows, kCols, kContraction, kFlat, kNone };
void put(Spread& spread, AxisSet axis, int choice) {
  spread = {spread.rows & ~axis, spread.cols & ~axis};
  if (choice < 2) (choice == kRows ? spread.rows : spread.cols) |= axis;
}
void put(LinearSharding& l, AxisSet axis, int choice) {
  for (AxisSet* set : {&l.rows, &l.cols, &l.contraction, &l.flat}) *set &= ~axis;
  if (choice == kRows || choice == kFlat) l.rows |= axis;
  if (choice == kCols) l.cols |= axis;
  if (choice == kContraction) l.contraction |= axis;
  if (choice == kFlat) l.flat |= axis;
}
void put(sharding::VocabSpread& table, AxisSet axis, int choice) {
  for (AxisSet* set : {&table.vocab, &table.width, &table.flat}) *set &= ~axis;
  if (choice < 3) (choice == 0 ? table.vocab : choice == 1 ? table.width : table.flat) |= axis;
}
/// The additive model is too coarse to choose between spreads, and moves of one axis do not always lead from one to the
/// other. So searches of at most kMostLists lists of axes add kMostSpecs specs with different spreads in all, others
/// only the best spec of each list.
constexpr size_t kMostSpecs = 48, kMostLists = 12, kMostOfList = 12;
constexpr int kSpreadChoices = 3, kLinearChoices = 5, kTableChoices = 4;

}  // namespace

void LayoutSearch::estimate(PlannedRun& run) {
  const ModelSharding layout = inside_stage(config::sharding_of(run.config));
  Config config = run.config;
  LayerCosts costs = costs_of(config, layout);
  estimate(run, config, costs, layout);
}

void LayoutSearch::estimate(PlannedRun& run, Config& config, LayerCosts& costs, const ModelSharding& layout) const {
  constexpr double kMayFit = 1.1;  // an estimate up to this factor above the limit may still fit
  constexpr double kLast = 1e6;
  run.choices = choices(run.config, cluster_);
  std::map<config::Recompute, double> micro_seconds;
  for (Choice& choice : run.choices) {
    choice.set(config);
    choice.bytes = costs.bytes(layout);
    const auto [micro, is_new] = micro_seconds.try_emplace(choice.recompute, 0);
    if (is_new) micro->second = costs.micro_seconds(layout);
    choice.seconds = micro->second + costs.update();
    if (choice.offload != config::OffloadOptimizer::none) {
      config.offload.optimizer = config::OffloadOptimizer::none;
      // An interleaved update keeps as much of this on the device as fits.
      const double all = costs.bytes(layout, params::ParamStore::Gradients::own_memory);
      const double kept = choice.offload == config::OffloadOptimizer::interleaved ? memory_limit_ : choice.bytes;
      choice.seconds += std::max(0.0, all - std::max(kept, choice.bytes)) * seconds_per_state_byte();
    }
  }
  if (may_choose_layers(run.config))
    for (Choice& full : run.choices)
      for (const Choice& selective : run.choices) {
        if (full.recompute != config::Recompute::full || selective.recompute != config::Recompute::selective) continue;
        if (full.zero_stage != selective.zero_stage || full.offload != selective.offload) continue;
        if (selective.bytes <= full.bytes) continue;
        const double part = (selective.bytes - memory_limit_) / (selective.bytes - full.bytes);
        full.seconds = std::min(full.seconds, std::lerp(selective.seconds, full.seconds, std::clamp(part, 0.0, 1.0)));
      }
  for (Choice& choice : run.choices) choice.seconds *= std::max(1.0, choice.bytes / memory_limit_);
  const Choice smallest = *std::ranges::min_element(run.choices, {}, &Choice::bytes);
  std::erase_if(run.choices, [&](const Choice& choice) { return choice.bytes > kMayFit * memory_limit_; });
  std::ranges::stable_sort(run.choices, {}, &Choice::seconds);
  run.estimate = run.choices.empty() ? kLast * smallest.seconds : run.choices.front().seconds;
  if (run.choices.empty() || smallest.bytes > memory_limit_) run.choices.push_back(smallest);
}

double LayoutSearch::seconds_per_state_byte() const {
  const double each = static_cast<double>((compute_ == DType::bf16 ? 3 : 2) * size_of(accumulator_of(compute_)));
  // The host updates one part of the parameters while the rest is copied to the device, updated and copied back.
  return 1 / (cluster_.host.updates * each + cluster_.host.to_device);
}

void LayoutSearch::find_specs(const Config& config, size_t most_axes, size_t searches, std::vector<PlannedRun>& runs) {
  const int64_t ranks = config::ranks_of_stage(config);
  std::vector<std::vector<int64_t>> lists = {config.parallel.axes};
  if (!config::is_given(config, "parallel.axes")) {
    lists = config::axis_lists(ranks, cluster_.devices_per_node);
    std::erase_if(lists, [&](const auto& extents) { return extents.size() > most_axes; });
  }
  searches *= lists.size();
  const size_t most = searches > kMostLists ? 1 : std::min(kMostOfList, kMostSpecs / std::max<size_t>(1, searches));
  const bool caches = most > 1 && !config::is_given(config, "parallel.cache_layers");
  for (const std::vector<int64_t>& extents : lists)
    for (const bool cached : {false, true}) {
      if (cached && !caches) continue;
      Config trial = config;
      trial.parallel.axes = extents;
      if (cached) trial.parallel.cache_layers = config.model.n_layer;
      find_specs_over_axes(std::move(trial), most, runs);
    }
}

void LayoutSearch::find_specs_over_axes(Config config, size_t most, std::vector<PlannedRun>& runs) {
  const Config open = config;
  LayerCosts costs = costs_of(config, inside_stage(config::sharding_of(config)));
  std::vector<PlannedRun> found;
  double best = std::numeric_limits<double>::infinity();
  for (const Choice& choice : choices(open, cluster_)) {
    choice.set(config);
    std::vector<ModelSharding> layouts = costs.best(std::numeric_limits<double>::infinity(), most);
    const bool fits = !layouts.empty() && costs.bytes(layouts.front()) <= memory_limit_;
    // The memory limit makes no layout faster, unless that leaves fewer layers to recompute.
    const bool fixed = choice.recompute != config::Recompute::full || !may_choose_layers(open);
    if (fixed && !fits && !layouts.empty() && costs.step_seconds(layouts.front()) > best) continue;
    if (!fits) layouts = costs.best(memory_limit_, most);
    for (const ModelSharding& layout : layouts) {
      if (open.parallel.cache_layers > 0 && !config::is_given(open, "parallel.cache_layers") &&
          !layout.gathers_weights())
        continue;  // as without a cache
      Config tagged = open;
      config::set_tables(tagged, layout);
      if (!config::layout_fits(tagged)) continue;
      found.push_back(planned(std::move(tagged)));
      estimate(found.back(), config, costs, layout);
      best = std::min(best, found.back().estimate);
    }
    if (fits) break;  // other choices only save memory
  }
  std::ranges::stable_sort(found, {}, &PlannedRun::estimate);
  std::set<std::string> seen;  // different choices may lead to the same spec
  std::erase_if(
      found, [&](const PlannedRun& run) { return seen.size() == most || !seen.insert(identity(run.config)).second; });
  std::ranges::move(found, std::back_inserter(runs));
}

std::vector<PlannedRun> LayoutSearch::neighbours(const Config& config) {
  const ModelSharding layout = inside_stage(config::sharding_of(config));
  Config priced = config;
  LayerCosts costs = costs_of(priced, layout);
  std::vector<PlannedRun> runs;
  const auto add = [&](ModelSharding other) {
    if (layout.head == layout.layers.back().stream)
      other.head = other.layers.back().stream;  // keep the head on the last layer's spread
    if (first_violation(other, config::extents_of(config))) return;
    Config trial = config;
    config::set_tables(trial, other);
    runs.push_back(planned(trial));
    estimate(runs.back(), priced, costs, other);
  };
  // Changes one axis, in all layers, in each pair of a spread and a linear that exchange a tensor, or in the table.
  for (size_t a = 0; a < layout.axes.size(); ++a) {
    if (a == layout.replica_axis()) continue;
    const AxisSet axis = AxisSet{1} << a;
    for (const Site site : {Site::qkv, Site::out, Site::up, Site::down})
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
    if (config.model.n_expert == 0) continue;
    // The linears of experts must agree.
    for (const int linear : {kRows, kCols, kFlat, kNone}) {
      ModelSharding other = layout;
      for (sharding::Layer& layer : other.layers) {
        put(layer.mlp, axis, linear == kFlat ? kRows : linear);
        put(layer.at(Site::up), axis, linear);
        put(layer.at(Site::down), axis, linear == kCols ? kContraction : linear);
      }
      add(std::move(other));
    }
    ModelSharding other = layout;
    for (sharding::Layer& layer : other.layers) layer.experts = layer.experts == axis ? 0 : axis;
    add(std::move(other));
  }
  ModelSharding other = layout;  // switch the schedule between a ring of GEMMs and a single GEMM
  for (sharding::Layer& layer : other.layers)
    for (auto& [site, l] : layer.linears)
      l.schedule = l.schedule == sharding::Transfer::ring ? sharding::Transfer::at_once : sharding::Transfer::ring;
  add(std::move(other));
  for (Config& kept : config::variants(config, cluster_.devices_per_node)) {
    runs.push_back(planned(std::move(kept)));
    estimate(runs.back());
  }
  std::ranges::stable_sort(runs, {}, &PlannedRun::estimate);
  return runs;
}

}  // namespace trainer::plan
