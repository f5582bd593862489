#pragma once
// Start report: the start event and a few lines of log before the first step.
#include <string>
#include <string_view>
#include <vector>

#include "comm/gpu_transport.h"
#include "data/source.h"
#include "report/events.h"
#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::run {

/// Makes the report from configuration, data, plan and a planned trainer. The caller adds step, peak, version, commit
/// and config_toml.
report::StartReport start_report(const config::Config& config, const data::Datasets& datasets,
                                 const setup::RunPlan& plan, const setup::Machine& machine, const comm::World& world,
                                 train::Trainer& trainer);

/// Returns lines for the log: the transport between GPUs, and the micro-steps that run as graphs; empty if there is
/// nothing to report.
std::vector<std::string> start_notes(const comm::GpuTransport& between_gpus, const train::Trainer& trainer);

/// `compute_reason`: the reason for the compute type.
void log_start(const report::StartReport& start, std::string_view compute_reason, std::string_view transport);

}  // namespace trainer::run
