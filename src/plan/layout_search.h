#pragma once
// LayoutSearch: layouts in the order in which the additive model likes them (plan/layer_costs.h).
#include <vector>

#include "plan/layer_costs.h"
#include "plan/pricing.h"

namespace trainer::plan {

class LayoutSearch {
 public:
  /// `memory_limit`: bytes of a rank. The cluster outlives the search.
  LayoutSearch(const Cluster& cluster, int64_t vocab, DType compute, double memory_limit)
      : cluster_(cluster), vocab_(vocab), compute_(compute), memory_limit_(memory_limit) {}

  /// Fills in the estimate of a run and the choices to price. Runs that do not fit whatever is chosen come after all
  /// others.
  void estimate(PlannedRun& run);

  /// Adds the best layout by tags for each list of at most so many axes that make the ranks of config's replica.
  void find_tags(const config::Config& config, size_t most_axes, std::vector<PlannedRun>& runs);

  /// Returns legal layouts by tags that differ from this one in one axis of one variable, or of two that exchange a
  /// tensor; the fastest by the model first.
  std::vector<PlannedRun> neighbours(const config::Config& config);

 private:
  /// `config`: that of the costs; its choices are overwritten.
  void estimate(PlannedRun& run, config::Config& config, LayerCosts& costs, const ModelSharding& layout) const;
  /// Seconds of an update for each byte of optimizer state on the host.
  double seconds_per_state_byte() const;
  LayerCosts costs_of(const config::Config& config, const ModelSharding& axes) {
    return {cluster_, config, vocab_, compute_, axes, routes_};
  }

  const Cluster& cluster_;
  const int64_t vocab_;
  const DType compute_;
  const double memory_limit_;
  RouteShares routes_;
};

}  // namespace trainer::plan
