#pragma once
// Memory that optimizer offload saves and uses, for every placement, computed from a single plan.
#include <string>

#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::setup {

/// Returns the bytes of tensors in device memory and in host memory (categories "host_…").
offload::Footprint memory_of(const RunPlan& plan);
/// Returns the same for the run of `plan` and `config` if the optimizer's state were placed as in `offload`.
offload::Footprint memory_with(const RunPlan& plan, const config::Config& config, const config::Offload& offload,
                               const Machine& machine);

/// Returns the smallest change in the placement of the optimizer's state that makes the run fit, with the keys to set:
/// "offload.slots = 2 fits". Empty: there is none.
std::string offload_change_that_fits(const RunPlan& plan, const config::Config& config, const Machine& machine);

/// Returns, for the log of a run, where the optimizer's state is and whether that was necessary; empty if it is on the
/// device.
std::string offload_note(const train::Trainer& trainer, const RunPlan& plan, const config::Config& config,
                         const Machine& machine);

/// Returns, for `train --dry-run`, a table of device and host memory for each placement of the optimizer's state.
std::string offload_table(const RunPlan& plan, const config::Config& config, const Machine& machine);

}  // namespace trainer::setup
