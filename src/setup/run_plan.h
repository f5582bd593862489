#pragma once
// The costs of a run: memory, FLOPs and communication, obtained by running its own code on a dry device.
#include <cstdint>
#include <string>

#include "config/flops.h"
#include "offload/cost.h"
#include "offload/footprint.h"
#include "setup/machine.h"
#include "tensor/costs.h"
#include "train/trainer.h"

namespace trainer::setup {

/// The update that a run's offload engine would perform.
struct OffloadWork {
  offload::Plan plan;
  bool chosen = false;  // the fraction depends on the rates of the machine
  std::vector<offload::Subgroup> subgroups;
  offload::Sizes sizes;
};

/// The category of the copy that background saves write (checkpoint.async), if it fits.
inline constexpr const char* kSnapshotMemory = "host_snapshot";

/// True if the run generates samples: it then holds a key-value cache in addition to the memory of training.
bool writes_samples(const config::Config& config);

/// The plan of a run: memory and FLOPs of a micro-step, and the bytes of a step. The run's own code makes it, without
/// computing, allocating or communicating.
struct RunPlan {
  BytesByCategory memory;  // bytes by category, "host" for memory outside tensors; activations by tag below
  BytesByCategory activations;
  int64_t total = 0;                     // of the device: on a GPU without "host"
  std::vector<offload::Extent> extents;  // of the parameters, by group
  int replicas = 1;
  int64_t parameters = 0;
  config::FlopsPerToken flops;
  double executed_flops = 0;                                // GEMMs and attention of one micro-step, as executed
  double recomputed_flops = 0;                              // part of them that recomputation repeats
  int64_t arena_bound = 0;                                  // largest sum of live bytes: a lower bound of the arena
  CommBytes comm_bytes;                                     // of a step, by axis and operation
  std::optional<OffloadWork> offload;                       // an update, if the optimizer state is on the host
  double step_seconds = kUnknown, wait_seconds = kUnknown;  // of a step, by hardware.profile
};
/// `recorders`: receive the programs of training, to predict their time (plan/program.h).
RunPlan plan_run(const config::Config& config, int64_t vocab, const Machine& machine, bool training,
                 const train::StepRecorders& recorders = {});
/// Returns the table for `train --dry-run`.
std::string to_text(const RunPlan& plan, const config::Config& config, const Machine& machine);
/// Throws Code::plan if the plan exceeds the limit, naming the largest category and the smallest change that fits.
void require_memory(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine);

}  // namespace trainer::setup
