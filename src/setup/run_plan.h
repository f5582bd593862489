#pragma once
// The costs of a run: memory, FLOPs and communication, obtained by running its own code on a dry device.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/flops.h"
#include "offload/cost.h"
#include "offload/placement.h"
#include "setup/machine.h"
#include "tensor/costs.h"
#include "train/trainer.h"

namespace trainer::setup {

/// The update that a run's offload engine would perform.
struct OffloadWork {
  offload::Placement placement;
  bool chosen = false;  // the streamed share is chosen to suit the machine's rates
  std::vector<offload::Subgroup> subgroups;
  offload::Sizes sizes;
};

/// The memory category of the copy that background saves (checkpoint.async) write from, if it fits.
inline constexpr const char* kSnapshotMemory = "host_snapshot";

/// True if the run generates samples: its memory then includes a key-value cache.
bool writes_samples(const config::Config& config);

/// The plan of a run: memory and FLOPs of a micro-step, and the bytes that a step communicates. It is made by executing
/// the run's own code, which on a dry device computes, allocates and communicates nothing.
struct RunPlan {
  BytesByCategory memory;  // bytes by category, "host" for memory outside tensors; activations by tag below
  BytesByCategory activations;
  bool gradients_in_activations = false;  // in the category "activations"
  /// Then, the most bytes alive until the backward pass is done with the last layer, and from the second layer on. Both
  /// are linear in the number of layers; their maximum, which no layer in between exceeds, is not.
  std::optional<std::array<int64_t, 2>> backward_peaks;
  int64_t total = 0;  // bytes on the device; on a GPU, without the categories "host…"
  int replicas = 1;
  int64_t parameters = 0;
  config::FlopsPerToken flops;
  double executed_flops = 0;                                // GEMMs and attention of one micro-step, as executed
  train::UpdateCost update;                                 // if the optimizer state is on the device
  double recomputed_flops = 0;                              // the part of executed_flops that recomputation repeats
  int64_t arena_bound = 0;                                  // most bytes live at once: a lower bound on the arena
  CommBytes comm_bytes;                                     // per step, by axis and operation
  std::optional<OffloadWork> offload;                       // empty: the optimizer state is on the device
  double step_seconds = kUnknown, wait_seconds = kUnknown;  // per step, predicted from hardware.profile
  double update_seconds = kUnknown;                         // the part of step_seconds in which the update computes
  std::string predicted_by;                                 // the profile, and the device that it describes
  std::vector<int64_t> stage_totals;                        // with several stages: of each, `total` of its first rank
  double bubble = kUnknown;  // and the share of a step in which ranks wait for other stages, on average
};
/// `recorders` receive training's programs, from which their time is predicted (plan/program.h).
RunPlan plan_run(const config::Config& config, int64_t vocab, const Machine& machine, bool training,
                 const train::ProgramRecorders& recorders = {});
/// Returns the plan of `config` that `plan` makes. If the run does not fit with gradients in memory of their own, which
/// updates that overlap with forward passes need, clears optim.overlap first.
RunPlan overlap_if_it_fits(config::Config& config, const Machine& machine, const std::function<RunPlan()>& plan);
/// Returns the smallest number of layers, in [least, most], whose full recomputation, next to selective recomputation
/// of the remaining ones, makes the run fit; `most` layers do. The search, in larger and larger steps from `guess`,
/// assumes that more layers need less memory. `fits` tries a configuration; of those that fit, it is given the one with
/// this number last, unless that is `most`.
int64_t fewest_recomputed_layers(config::Config config, int64_t least, int64_t most, int64_t guess,
                                 const std::function<bool(const config::Config&)>& fits);
/// Returns "6.54G FLOPs in GEMMs, 52.1 MiB of memory traffic and 3.1 MiB sent per rank, 12.3 ms predicted".
std::string update_text(const train::UpdateCost& update, double seconds);
/// Returns the machine as a stage's first rank sees it.
Machine on_stage(Machine machine, const config::Config& config, int64_t stage);
/// Returns the plans of training on the first rank of each stage.
std::vector<RunPlan> plan_stages(const config::Config& config, int64_t vocab, const Machine& machine);
/// Returns `bubble` of a step in which each pass takes as long as its FLOPs, hidden messages and an instant update;
/// NaN if there is one stage. parallel.stage_layers must be chosen.
double bubble_by_flops(const config::Config& config, int64_t vocab);
/// Returns lines on the layout, the layers and the memory of several stages; empty if there is one.
std::vector<std::string> stage_lines(const config::Config& config, const RunPlan& plan);
/// Returns "16 experts on each rank; exchange 2.35 GB per rank, layer and micro-batch"; empty if no ranks divide the
/// experts. Loads are balanced.
std::string exchange_text(const config::Config& config, DType compute);
/// Returns a warning if there are so few micro-batches per step that a third of it or more is bubble; else nothing.
std::string few_micro_batches_text(const config::Config& config, const RunPlan& plan);
/// Returns the table for `train --dry-run`.
std::string to_text(const RunPlan& plan, const config::Config& config, const Machine& machine);
/// Throws Code::plan if the plan exceeds the limit, naming the largest category and a remedy: what `advice` returns,
/// or, for training, the smallest change that fits.
void require_memory(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine,
                    const std::function<std::string()>& advice = {});

}  // namespace trainer::setup
