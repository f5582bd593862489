#pragma once
// LayoutSearch: layouts ranked by the additive model (plan/layer_costs.h).
#include <vector>

#include "plan/layer_costs.h"
#include "plan/pricing.h"

namespace trainer::plan {

class LayoutSearch {
 public:
  /// `memory_limit` is in bytes per rank. The cluster must outlive the search.
  LayoutSearch(const Cluster& cluster, int64_t vocab, DType compute, double memory_limit)
      : cluster_(cluster), vocab_(vocab), compute_(compute), memory_limit_(memory_limit) {}

  /// Fills in the estimate of a run and the choices to price. Runs that do not fit with any of their
  /// choices are ranked after all other runs.
  void estimate(PlannedRun& run);

  /// Adds the best sharding spec for each list of at most `most_axes` axes whose sizes multiply to the ranks of
  /// config's replica, or for parallel.axes if it is set; of few lists, also the best with other spreads.
  /// `searches`: the number of such calls for a plan.
  void find_specs(const config::Config& config, size_t most_axes, size_t searches, std::vector<PlannedRun>& runs);

  /// Returns legal sharding specs that differ from this one in one axis of one variable, or of two variables that
  /// exchange a tensor, or only in parallel.cache_layers, ordered by estimated time.
  std::vector<PlannedRun> neighbours(const config::Config& config);

 private:
  /// Adds the best sharding specs over config's axes, `most` with different spreads.
  void find_specs_over_axes(config::Config config, size_t most, std::vector<PlannedRun>& runs);
  /// `config` must be the configuration that `costs` was created with; its choices are overwritten.
  void estimate(PlannedRun& run, config::Config& config, LayerCosts& costs, const ModelSharding& layout) const;
  /// Returns the seconds of an update per byte of optimizer state on the host.
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
