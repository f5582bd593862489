#pragma once
// Start report: the start event, and a few log lines before the first step.
#include <string>
#include <string_view>
#include <vector>

#include "comm/gpu_transport.h"
#include "data/source.h"
#include "report/events.h"
#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::run {

/// Returns the report for a run whose trainer is planned. The caller sets step, total_steps, data_position, peak,
/// version, commit and config_toml.
report::StartReport start_report(const config::Config& config, const data::Datasets& datasets,
                                 const setup::RunPlan& plan, const setup::Machine& machine, const comm::World& world,
                                 train::Trainer& trainer);

/// Returns log lines on the transport between GPUs and on the micro-steps that run as CUDA graphs; a line is empty if
/// there is nothing to report.
std::vector<std::string> start_notes(const comm::GpuTransport& between_gpus, const train::Trainer& trainer);

/// Logs the report. `compute_reason` is why the compute type was chosen.
void log_start(const report::StartReport& start, const std::string& exchange, std::string_view compute_reason,
               std::string_view transport);

}  // namespace trainer::run
