#pragma once
// The predicted time of a run's steps, from the profile of its machine (hardware.profile), and strategy "auto", which
// lets the planner choose.
#include <string>

#include "comm/world.h"
#include "plan/planner.h"

namespace trainer::plan {

/// Throws Code::config when a profile was measured on devices different from this machine's.
void require_own_profile(const Cluster& cluster, const Machine& machine);

/// Returns the plan of a run, and, with a profile, the time of its steps.
RunPlan plan_and_time(const config::Config& config, int64_t vocab, const Machine& machine);

/// Returns the configuration with its strategy "auto" replaced by the fastest layout for this world, and the reasons in
/// `reasons`. Collective: the first rank reads the profile, and all ranks make the same plan. Throws Code::plan when
/// nothing fits.
config::Config choose_strategy(comm::World& world, const config::Config& config, int64_t vocab, const Machine& machine,
                               std::string& reasons);

}  // namespace trainer::plan
