#pragma once
// Events of a run: one struct per event of metrics.jsonl. Times are in milliseconds if their name ends in ms, and in
// seconds if not; losses are in nats per token; NaN means "not known" and is written as null.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/flops.h"
#include "config/model.h"
#include "device/power.h"
#include "setup/peak.h"
#include "tensor/costs.h"

namespace trainer::report {

/// Optimizer offload in a step, on a rank that keeps optimizer state in host memory.
struct OffloadReport {
  std::string device_share;                      // streamed fraction of the elements that are not resident, "1/2"
  int64_t host = 0, streamed = 0, resident = 0;  // number of parameters updated in each place
  std::map<std::string, int64_t> bytes;          // transferred between host and device, by kind
  double exposed_ms = kUnknown;                  // time that the step waited for updates
  std::map<std::string, double> busy_ms;         // by stream, in the latest completed update
  double update_ms = kUnknown;     // time of that update, from the gradient norm until all weights were updated
  double emulated_ms = kUnknown;   // time of an update on the emulated device, if there is one
  double predicted_ms = kUnknown;  // on the emulated device, or on this machine if there is none
  // The latest completed update, if no device is emulated:
  double parameters_per_s = kUnknown;  // rate of this rank
  double overlapped = kUnknown;        // share of the streams' work for which no step waited
  double memory_share = kUnknown;      // memory bandwidth of updates on the host, relative to the measured bandwidth
  // The plan: number of subgroups and size of the largest, how many are resident on the device, the device's slots for
  // streamed subgroups, and the kind of host memory.
  int64_t subgroups = 0, largest_subgroup = 0, resident_subgroups = 0, slots = 0;
  std::string host_memory;
};

/// The choices of the routers in a step: see train::ExpertStatistics.
struct ExpertsReport {
  double load_max = kUnknown;
  int64_t load_layer = 0, idle = 0;
  double entropy = kUnknown;
  int64_t rounds = 0;
};

struct StepReport {
  int64_t step = 0;          // 1-based
  int64_t tokens = 0;        // seen so far by the whole run, including this step
  int64_t loss_tokens = -1;  // targets that count in the loss; −1: all of the step's
  double loss = kUnknown;    // mean over these tokens, before the step's update
  double z_loss = kUnknown;  // mean of the z-loss over the same tokens; only with train.z_loss
  // Means over rows and layers with experts, without coefficients; NaN in dense models.
  double balance_loss = kUnknown, router_z_loss = kUnknown;
  std::optional<ExpertsReport> experts = {};  // in steps whose progress is logged
  double lr = kUnknown, grad_norm = kUnknown;
  bool skipped = false;    // no update: the loss or a gradient was not finite, or was a spike
  std::string bad_tensor;  // in a skipped step: the first tensor that was not finite
  double step_ms = kUnknown, tokens_per_s = kUnknown;
  double tflops_per_device = kUnknown;  // from model FLOPs with the full attention count
  double mfu = kUnknown, mfu_causal = kUnknown, hfu = kUnknown;
  double peak_tflops = kUnknown;  // the denominator of utilisation: the best peak known at that time
  double bubble = kUnknown;       // share in which ranks wait for other stages, on average; NaN if that is not known
  double optimizer_flops = 0;     // FLOPs of this rank's orthogonalizations, excluded from the utilisations; 0: none
  PhaseMs phase_ms;
  CommBytes comm_bytes;                         // sent in this step
  WaitMs comm_wait_ms;                          // this rank's waits by axis and operation; their sum is comm_exposed
  BytesByCategory memory_bytes;                 // peaks so far
  int64_t data_position = 0;                    // samples seen
  std::map<std::string, int64_t> sources = {};  // in a mixture: samples seen from each source
  double epoch = kUnknown;                      // samples seen / windows of the training data; NaN for a mixture
  std::optional<OffloadReport> offload = {};    // empty: the optimizer state is on the device
  std::optional<device::PowerMeter::Reading> gpu = {};  // rank 0's GPU, at most a second ago; empty: not known
};

/// The evaluation of a named validation set.
struct SetReport {
  std::string name;
  double loss = kUnknown, perplexity = kUnknown;
  std::optional<double> bits_per_byte = {};
  int64_t tokens = 0;
  std::string data = {};  // run::evaluated_data()
};

/// True if the losses of two evaluations of a set can be compared: they predict the same tokens in the same windows.
template <typename Evaluation>
bool are_comparable(const Evaluation& a, const Evaluation& b) {
  return a.tokens == b.tokens && a.data == b.data;
}

struct EvalReport {
  int64_t step = 0;  // after this step's update
  double loss = kUnknown, perplexity = kUnknown;
  std::optional<double> bits_per_byte = {};  // empty without a tokenizer
  int64_t tokens = 0;                        // number of predicted tokens
  std::string data = {};                     // as in SetReport
  std::string set = {};                      // the set that these numbers belong to; empty: the only set, without name
  std::vector<SetReport> sets = {};          // all named sets, in the order of the configuration

  /// Returns the loss of the set with that name; empty if it was not evaluated.
  std::optional<double> loss_of(const std::string& name) const {
    if (name == set) return loss;
    const auto found = std::ranges::find(sets, name, &SetReport::name);
    return found == sets.end() ? std::nullopt : std::optional(found->loss);
  }
};

/// A model's score in a task.
struct TaskReport {
  std::string name;
  double score = kUnknown, centred = kUnknown;  // accuracy, and its share above that of guessing (data::centred())
  double loss = kUnknown;                       // nats per token of the right answers
  int64_t questions = 0;

  /// Returns the standard error of the score, that of a proportion.
  double error() const {
    return std::sqrt(score * (1 - score) / static_cast<double>(std::max<int64_t>(1, questions - 1)));
  }
};
/// The evaluation of all tasks, in the order of the configuration.
struct TasksReport {
  int64_t step = 0;
  std::vector<TaskReport> tasks = {};
  double core = kUnknown;  // mean of centred over the tasks with metric core

  /// Returns the task with that name; null if there is none.
  const TaskReport* find(const std::string& name) const {
    const auto found = std::ranges::find(tasks, name, &TaskReport::name);
    return found == tasks.end() ? nullptr : &*found;
  }
};

struct CheckpointReport {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double seconds = kUnknown;       // from the end of the step until the checkpoint was complete
  double wait_seconds = kUnknown;  // the part of that time for which training waited
  bool best = false;               // lowest validation loss so far
};

struct WarningReport {
  int64_t step = 0;
  std::string message;
};

/// A window of steps on several ranks: each rank's time of a step without waiting for others (the median of the
/// window).
struct RanksReport {
  int64_t step = 0;                                                   // the last of the window
  double median_ms = kUnknown, p90_ms = kUnknown, max_ms = kUnknown;  // over the ranks
  int64_t slowest = 0;                                                // the rank of max_ms
  std::string host = {};                                              // the host of that rank
  int64_t stages = 1;               // pipeline stages, which are contiguous blocks of ranks with different work
  std::vector<double> own_ms = {};  // by rank; of more than kMostRanksListed, quantiles in ascending order
};
inline constexpr size_t kMostRanksListed = 1024;

/// Predicted or measured costs: the time of a step, the exposed communication in it, the memory of the process (of all
/// its ranks if they are threads), and the bytes sent in all steps of the run.
struct Estimate {
  double step_ms = kUnknown, wait_ms = kUnknown;
  int64_t memory_bytes = 0;  // 0: not known
  CommBytes comm_bytes = {};
  double bubble = kUnknown;  // as in StepReport
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
  config::Model model;        // effective values
  std::string arch, compute;
  int64_t vocab_size = 0, parameters = 0;
  // The work.
  int64_t total_steps = 0;
  int64_t global_batch = 0, micro_batch = 0, accumulation = 0, data_replicas = 1;  // sequences
  int64_t train_tokens = 0, val_tokens = 0;                                        // in the data
  int64_t windows = 0;                                                             // training windows in one epoch
  std::map<std::string, int64_t> sources = {};         // in a mixture: tokens of each source
  std::map<std::string, int64_t> source_samples = {};  // in a mixture: samples seen from each source in these steps
  double unigram_entropy = kUnknown;                   // data::unigram_entropy()
  config::FlopsPerToken flops;
  setup::PeakReport peak;  // so far
  Estimate predicted;
  std::string predicted_by = {};         // the file from which the predicted rates come
  std::vector<std::string> stages = {};  // lines on several stages (setup::stage_lines)
  Environment environment;
  std::string config_toml;  // the effective configuration
};

/// Returns "32 per layer, 4 per token; 43.3 M of 191.8 M parameters active"; empty for a dense model.
std::string experts_text(const StartReport& start);

struct EndReport {
  int64_t step = 0, tokens = 0;
  std::string outcome;       // "finished", "stopped by SIGTERM", "stopped at the time limit"
  double wall_s = kUnknown;  // time since this process's machine, model and weights were ready
  Estimate predicted, measured;
  setup::PeakReport peak;  // the best peak that this process found
  // By layer with experts: how often each expert was chosen in the last step whose progress was logged.
  std::vector<std::vector<int64_t>> choices = {};
};

/// A generated text.
struct Sample {
  int64_t step = 0;
  std::string prompt, text;  // text: without the prompt
};

/// "2030-01-31T12:34:56Z"
std::string utc_now();

}  // namespace trainer::report
