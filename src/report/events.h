#pragma once
// Events of a run: one struct per event of metrics.jsonl. Times are milliseconds where the name says ms, else seconds;
// losses are nats per token; NaN stands for "not known" and becomes null.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/flops.h"
#include "device/power.h"
#include "setup/peak.h"
#include "tensor/costs.h"

namespace trainer::report {

/// The offload part of a step on this rank, if its optimizer state is in host memory.
struct OffloadReport {
  std::string device_share;                      // streamed fraction of the elements that are not resident, "1/2"
  int64_t host = 0, streamed = 0, resident = 0;  // numbers of parameters by place of update
  std::map<std::string, int64_t> bytes;          // between host and device, by kind
  double exposed_ms = kUnknown;                  // time that the step waited for updates
  std::map<std::string, double> busy_ms;         // of lanes, in the newest update that is done
  double update_ms = kUnknown;                   // of that update, from the norm until the last weights were updated
  double emulated_ms = kUnknown;                 // of an update on the emulated device, if there is one
  double predicted_ms = kUnknown;                // on that device, else on this machine
  // The newest completed update, without an emulated device:
  double parameters_per_s = kUnknown;  // of this rank
  double overlapped = kUnknown;        // share of the lanes' work for which no step waited
  double memory_share = kUnknown;      // of updates on the host, relative to the measured memory rate
  // The plan: pieces and their largest, how many stay on the device, slots for others, and the kind of host memory.
  int64_t subgroups = 0, largest_subgroup = 0, resident_subgroups = 0, slots = 0;
  std::string host_memory;
};

struct StepReport {
  int64_t step = 0;        // 1-based
  int64_t tokens = 0;      // seen so far by the whole run, including this step
  double loss = kUnknown;  // mean over the step's tokens, before its update
  double lr = kUnknown, grad_norm = kUnknown;
  bool skipped = false;    // not finite: no update
  std::string bad_tensor;  // in a skipped step: the first tensor that was not finite
  double step_ms = kUnknown, tokens_per_s = kUnknown;
  double tflops_per_device = kUnknown;  // from model FLOPs with the full attention count
  double mfu = kUnknown, mfu_causal = kUnknown, hfu = kUnknown;
  double peak_tflops = kUnknown;  // the denominator of utilisation: the best peak known at that time
  PhaseMs phase_ms;
  CommBytes comm_bytes;                         // of this step
  WaitMs comm_wait_ms;                          // of this rank, by axis and operation: the parts of comm_exposed
  BytesByCategory memory_bytes;                 // peaks so far
  int64_t data_position = 0;                    // samples seen
  std::map<std::string, int64_t> sources = {};  // of a mixture: samples seen of each
  double epoch = kUnknown;                      // samples seen / windows of the training data; NaN for a mixture
  std::optional<OffloadReport> offload = {};    // empty: the optimizer state is on the device
  std::optional<device::PowerMeter::Reading> gpu = {};  // of rank 0's GPU, at most a second old; empty: not known
};

/// How well a validation set with a name is predicted.
struct SetReport {
  std::string name;
  double loss = kUnknown, perplexity = kUnknown;
  std::optional<double> bits_per_byte = {};
  int64_t tokens = 0;
};

struct EvalReport {
  int64_t step = 0;  // after this step's update
  double loss = kUnknown, perplexity = kUnknown;
  std::optional<double> bits_per_byte = {};  // empty without a tokenizer
  int64_t tokens = 0;                        // number of predicted tokens
  std::string set = {};                      // whose numbers these are; empty: the only set, which has no name
  std::vector<SetReport> sets = {};          // of all sets with names, in the order of the configuration

  /// Returns the loss of the set of that name; nothing when it was not evaluated.
  std::optional<double> loss_of(const std::string& name) const {
    if (name == set) return loss;
    const auto found = std::ranges::find(sets, name, &SetReport::name);
    return found == sets.end() ? std::nullopt : std::optional(found->loss);
  }
};

struct CheckpointReport {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double seconds = kUnknown;       // from the step's end until it was complete
  double wait_seconds = kUnknown;  // part of it for which training waited
  bool best = false;               // lowest validation loss so far
};

struct WarningReport {
  int64_t step = 0;
  std::string message;
};

/// Predicted or measured: one step's time and its exposed communication time, memory of the process (of all its ranks
/// if they are threads), bytes over all steps of the run.
struct Estimate {
  double step_ms = kUnknown, wait_ms = kUnknown;
  int64_t memory_bytes = 0;  // 0: not known
  CommBytes comm_bytes = {};
};

struct Environment {
  std::string version, commit;
  std::string device;        // "cpu"
  std::string isa;           // instruction set of the kernels in use
  std::string product_path;  // the GEMM kernels and their data type
  int ranks = 1, threads = 0;
};

/// Everything known before the first step.
struct StartReport {
  int64_t step = 0;           // completed steps: above 0 after a resume
  int64_t data_position = 0;  // samples seen in these steps
  std::string name, time;     // time: UTC, ISO 8601 (utc_now())
  config::Model model;        // values in force
  std::string arch, compute;
  int64_t vocab_size = 0, parameters = 0;
  // The work.
  int64_t total_steps = 0;
  int64_t global_batch = 0, micro_batch = 0, accumulation = 0, data_replicas = 1;  // sequences
  int64_t train_tokens = 0, val_tokens = 0;                                        // in the data
  int64_t windows = 0;                                                             // training windows in one epoch
  std::map<std::string, int64_t> sources = {};                                     // of a mixture: tokens of each
  double unigram_entropy = kUnknown;                                               // data::unigram_entropy()
  config::FlopsPerToken flops;
  setup::PeakReport peak;  // so far
  Estimate predicted;
  Environment environment;
  std::string config_toml;  // values in force
};

struct EndReport {
  int64_t step = 0, tokens = 0;
  std::string outcome;       // "finished", "stopped by SIGTERM", "stopped at the time limit"
  double wall_s = kUnknown;  // of this process, from when machine, model and weights were ready
  Estimate predicted, measured;
  setup::PeakReport peak;  // the best peak that this process found
};

/// A generated text.
struct Sample {
  int64_t step = 0;
  std::string prompt, text;  // text: without the prompt
};

/// "2030-01-31T12:34:56Z"
std::string utc_now();

}  // namespace trainer::report
