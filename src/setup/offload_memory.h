#pragma once
// Memory saved and used by optimizer offload: every placement, by byte functions of one plan.
#include <string>

#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::setup {

/// Bytes of tensors on the device, and of its state on the host.
offload::Footprint memory_of(const RunPlan& plan);
/// The same of the run that `plan` and `config` are of, if it kept the optimizer's state as `offload` says.
offload::Footprint memory_with(const RunPlan& plan, const config::Config& config, const config::Offload& offload,
                               const Machine& machine);

/// Returns the smallest change of where the optimizer's state is that makes the run fit, with the keys to set:
/// "offload.slots = 2 fits". Empty: there is none.
std::string offload_change_that_fits(const RunPlan& plan, const config::Config& config, const Machine& machine);

/// For the log of a run: where the optimizer's state is, and whether that was needed. Empty: on the device.
std::string offload_note(const train::Trainer& trainer, const RunPlan& plan, const config::Config& config,
                         const Machine& machine);

/// For `train --dry-run`: a table of device and host memory of each way to keep the optimizer's state.
std::string offload_table(const RunPlan& plan, const config::Config& config, const Machine& machine);

}  // namespace trainer::setup
