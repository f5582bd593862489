#pragma once
// What a run expects of its steps, by the profile of its machine (hardware.profile); and strategy "auto", which lets
// the planner choose.
#include <string>

#include "comm/world.h"
#include "plan/planner.h"

namespace trainer::plan {

/// Throws Code::config when a measured profile is of other devices than this machine's.
void require_own_profile(const Cluster& cluster, const Machine& machine);

/// Returns the plan of a run, and with a profile the time of its steps.
RunPlan plan_and_time(const config::Config& config, int64_t vocab, const Machine& machine);

/// Returns the configuration with its strategy "auto" replaced by the fastest layout for this world, and the reasons in
/// `reasons`. Collective: the first rank reads the profile, and all plan the same. Throws Code::plan when nothing fits.
config::Config choose_strategy(comm::World& world, const config::Config& config, int64_t vocab, const Machine& machine,
                               std::string& reasons);

}  // namespace trainer::plan
