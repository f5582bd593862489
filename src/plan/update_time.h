#pragma once
// The time of Muon's update, except its operators on flat buffers: estimates from the shapes of the matrices, for the
// search over layouts. Recorded programs (plan/price.h) contain the operators and messages themselves.
#include <optional>

#include "config/forward.h"
#include "plan/cluster.h"
#include "sharding/sharding.h"

namespace trainer::plan {

/// Returns the seconds in which the rank with the most work orthogonalizes its matrices; 0 for AdamW. `config` must
/// have parallel.data.
double orthogonalization_seconds(const Cluster& cluster, const config::Config& config, DType compute);

/// Returns the same with the exchange of matrices, which overlaps with it. `axes`: those of the run.
double update_seconds(const Cluster& cluster, const config::Config& config, DType compute,
                      const sharding::ModelSharding& axes);

/// Returns a type in which the run multiplies matrices but for which the cluster has no peak; empty if there is none.
std::optional<DType> type_without_peak(const Cluster& cluster, const config::Config& config, DType compute);

}  // namespace trainer::plan
