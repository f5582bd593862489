#pragma once
// The time of an optimizer update on the host, from a cluster's [host] table, and the offload settings that a plan
// tries. The closed form and the choice of the share are those of the engine (offload/cost.h).
#include <optional>
#include <vector>

#include "plan/cluster.h"
#include "setup/run_plan.h"

namespace trainer::plan {

using setup::OffloadWork;

/// Returns the rates of a rank. If [host] is missing, a CPU updates in its own memory, and for a GPU Code::config is
/// thrown.
offload::Rates offload_rates(const Cluster& cluster, const offload::Sizes& sizes);

/// Returns the share of the state that is streamed to the device: the configured share, or the fastest at these rates.
config::Fraction device_share(const OffloadWork& work, const offload::Rates& rates);

/// Returns the seconds of the last backward pass, which overlaps with copies of gradients to the host: two thirds of a
/// micro-step's compute.
inline double last_backward_seconds(double micro_step) { return 2.0 / 3 * micro_step; }
/// Returns the seconds that offload adds to a step: the time from the gradient norm until all weights are updated,
/// plus the time of gradient copies that does not overlap with the last backward pass, which takes `backward` seconds.
/// Overlap with the next forward pass is not deducted.
double offload_seconds(const OffloadWork& work, const Cluster& cluster, double backward);

/// Returns the work of a deeper model: `more` plus `layers` times the difference between `more` and `less`.
std::optional<OffloadWork> deepened(const std::optional<OffloadWork>& less, const std::optional<OffloadWork>& more,
                                    int64_t layers);

/// Returns the values of offload.optimizer to try in addition to none. Returns an empty list if offload.optimizer is
/// given, on CPUs, and if the cluster file has no [host] table.
std::vector<config::OffloadOptimizer> offload_choices(const config::Config& config, const Cluster& cluster);

/// Returns how many subgroups fit on the device within `bytes` bytes.
int64_t residents_within(const OffloadWork& work, double bytes);

}  // namespace trainer::plan
