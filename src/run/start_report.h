#pragma once
// What a run says of itself before its first step: the start event, and a few lines of log.
#include <string_view>

#include "data/source.h"
#include "plan/run_plan.h"
#include "report/events.h"

namespace trainer::run {

/// What follows from configuration, data and plan. Step, accumulation, replicas, peak, environment and config_toml are
/// the caller's.
report::StartReport start_report(const config::Config& config, const data::Datasets& datasets,
                                 const plan::RunPlan& plan, const plan::Machine& machine, int ranks_of_process);

/// `compute_reason`: why that compute type.
void log_start(const report::StartReport& start, std::string_view compute_reason, std::string_view transport);

}  // namespace trainer::run
