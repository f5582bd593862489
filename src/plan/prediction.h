#pragma once
// Prediction of a run's step time from hardware.profile, and strategy "auto", which lets the planner choose the layout.
#include <optional>
#include <string>

#include "comm/world.h"
#include "plan/planner.h"

namespace trainer::plan {

/// Throws Code::config when a profile was measured on devices different from this machine's.
void require_own_profile(const Cluster& cluster, const Machine& machine);

/// Returns the plan of a run, including its predicted step time if hardware.profile is set.
RunPlan plan_and_time(const config::Config& config, int64_t vocab, const Machine& machine);

/// Returns the configuration with its strategy "auto" replaced by the fastest layout for this world. A run that resumes
/// from one configured by `trained` keeps the layout of that one if it fits, since results round differently with
/// others. Rank 0 logs the choice. Collective: the first rank reads the profile, and all ranks make the same plan.
/// Throws Code::plan when nothing fits.
config::Config choose_strategy(comm::World& world, const config::Config& config,
                               const std::optional<config::Config>& trained, int64_t vocab, const Machine& machine);

}  // namespace trainer::plan
