#pragma once
// Prediction of a run's step time from hardware.profile, and strategy "auto", which lets the planner choose the layout.
#include <string>

#include "comm/world.h"
#include "plan/planner.h"

namespace trainer::plan {

/// Throws Code::config when a profile was measured on devices different from this machine's.
void require_own_profile(const Cluster& cluster, const Machine& machine);

/// Returns the plan of a run, including its predicted step time if hardware.profile is set.
RunPlan plan_and_time(const config::Config& config, int64_t vocab, const Machine& machine);

/// Returns the configuration with its strategy "auto" replaced by the fastest layout for this world, and stores the
/// table of the fastest layouts in `reasons`. Collective: the first rank reads the profile, and all ranks make the same
/// plan. Throws Code::plan when nothing fits.
config::Config choose_strategy(comm::World& world, const config::Config& config, int64_t vocab, const Machine& machine,
                               std::string& reasons);

}  // namespace trainer::plan
