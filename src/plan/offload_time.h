#pragma once
// The time of an optimizer update on the host, from a cluster's [host] table, and the offload settings that a plan
// tries. The closed form and the choice of the share are those of the engine (offload/cost.h).
#include <optional>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "setup/run_plan.h"

namespace trainer::plan {

using setup::OffloadWork;

/// Returns the rates of a rank. A CPU without [host] updates in its own memory. Throws Code::config if a GPU's host is
/// not described.
offload::Rates offload_rates(const Cluster& cluster, const offload::Sizes& sizes);

/// Returns the share that is streamed: the best one at these rates if it is not given.
config::Fraction device_share(const OffloadWork& work, const offload::Rates& rates);

/// Returns the seconds of the last backward pass, which overlaps with copies of gradients to the host: two thirds of a
/// micro-step's compute.
inline double last_backward_seconds(double micro_step) { return 2.0 / 3 * micro_step; }
/// Returns the seconds that offload adds to a step: from the norm until all weights are updated, and the time of
/// gradient copies that exceeds `backward`, the seconds that overlap with them. Overlap with the next forward pass is
/// not deducted.
double offload_seconds(const OffloadWork& work, const Cluster& cluster, double backward);

/// Returns the work of a deeper model: `more` plus `layers` times the difference between `more` and `less`.
std::optional<OffloadWork> deepened(const std::optional<OffloadWork>& less, const std::optional<OffloadWork>& more,
                                    int64_t layers);

/// Returns ways to keep the state on the host that the configuration leaves open: none if offload is given, if a CPU
/// computes, or if the cluster does not describe its hosts.
std::vector<config::Offload> offload_choices(const config::Config& config, const Cluster& cluster);

/// Returns how many subgroups fit on the device within `bytes` bytes.
int64_t residents_within(const OffloadWork& work, double bytes);

}  // namespace trainer::plan
