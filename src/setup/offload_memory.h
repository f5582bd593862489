#pragma once
// Device and host memory for every placement of the optimizer state, computed from one plan.
#include <string>

#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::setup {

/// Returns the bytes of tensors on the device, and of those that the plan places in host memory.
offload::Footprint memory_of(const RunPlan& plan);
/// Returns what memory_of() would be if the run placed its optimizer state as `offload` specifies.
offload::Footprint memory_with(const RunPlan& plan, const config::Config& config, const config::Offload& offload,
                               const Machine& machine);

/// Returns the smallest change to the placement of the optimizer state that makes the run fit, as keys to set:
/// "offload.slots = 2 fits". Empty: no such change does.
std::string offload_change_that_fits(const RunPlan& plan, const config::Config& config, const Machine& machine);

/// Returns a log line: where the optimizer state is, and whether the run would fit without offload. Empty if nothing
/// is offloaded.
std::string offload_note(const train::Trainer& trainer, const RunPlan& plan, const config::Config& config,
                         const Machine& machine);

/// Returns a table for `train --dry-run`: device and host memory for each placement of the optimizer state.
std::string offload_table(const RunPlan& plan, const config::Config& config, const Machine& machine);

}  // namespace trainer::setup
