#pragma once
// Memory saved and used by optimizer offload, for every placement, computed from one plan.
#include <string>

#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::setup {

/// Returns the bytes of tensors on the device, and of its state on the host.
offload::Footprint memory_of(const RunPlan& plan);
/// Returns the same for the run of `plan` and `config`, if it kept the optimizer state as in `offload`.
offload::Footprint memory_with(const RunPlan& plan, const config::Config& config, const config::Offload& offload,
                               const Machine& machine);

/// Returns the smallest change of the placement of the optimizer state that makes the run fit, with the keys to set:
/// "offload.slots = 2 fits". Empty: there is none.
std::string offload_change_that_fits(const RunPlan& plan, const config::Config& config, const Machine& machine);

/// Returns a log line: the place of the optimizer state, and whether offload was needed. Empty: on the device.
std::string offload_note(const train::Trainer& trainer, const RunPlan& plan, const config::Config& config,
                         const Machine& machine);

/// Returns a table for `train --dry-run`: device and host memory for each placement of the optimizer state.
std::string offload_table(const RunPlan& plan, const config::Config& config, const Machine& machine);

}  // namespace trainer::setup
