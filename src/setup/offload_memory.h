#pragma once
// Device and host memory for every placement of the optimizer state: each is that of its own plan.
#include <string>

#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::setup {

struct PlacedBytes {
  int64_t device = 0, host = 0;
};
/// Returns the bytes of tensors on the device, and of those that the plan places in host memory.
PlacedBytes memory_of(const RunPlan& plan);

/// Returns the smallest change to the placement of the optimizer state that makes the run fit, as keys to set:
/// "offload.slots = 2 fits". Empty: no such change does.
std::string offload_change_that_fits(const RunPlan& plan, const config::Config& config, int64_t vocab,
                                     const Machine& machine);

/// Returns a log line: where the optimizer state is, and whether the run would fit without offload. Empty if nothing
/// is offloaded.
std::string offload_note(const train::Trainer& trainer, const config::Config& config, int64_t vocab,
                         const Machine& machine);

/// Returns a table for `train --dry-run`: device and host memory for each placement of the optimizer state. Empty if
/// the optimizer cannot be offloaded.
std::string offload_table(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine);

}  // namespace trainer::setup
