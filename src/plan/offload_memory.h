#pragma once
// What keeping the optimizer's state on the host saves, by plans of the same run with and without it.
#include <string>

#include "plan/run_plan.h"
#include "train/trainer.h"

namespace trainer::plan {

/// Bytes that tensors take of the device, and on the host what is kept there for it.
struct DeviceAndHost {
  int64_t device = 0, host = 0;
};
DeviceAndHost memory_of(const RunPlan& plan);

/// "fits without offload: yes, 1.2 GiB of 4.0 GiB": of a run whose state is on the host.
std::string fits_without_offload(const config::Config& config, int64_t vocab, const Machine& machine);

/// For the log of a run: where the optimizer's state is, and whether that was needed. Empty: on the device.
std::string offload_note(const train::Trainer& trainer, const config::Config& config, int64_t vocab,
                         const Machine& machine);

/// For `train --dry-run` of the run that `plan` is of: a table of device and host memory of each way to keep the
/// optimizer's state, where the run keeps it on the host; else whether the run fits as it is. Each row is a plan.
std::string offload_table(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine);

}  // namespace trainer::plan
