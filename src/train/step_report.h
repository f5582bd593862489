#pragma once
// What a run reports: one struct per event of metrics.jsonl. Times are milliseconds where the name says ms, else
// seconds; losses are nats per token; NaN stands for "not known" and becomes null.
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/power.h"
#include "train/flops.h"

namespace trainer::train {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

using BytesByCategory = std::map<std::string, int64_t>;
/// Wire bytes by mesh axis and operation, total over the ranks of one group of the axis.
using CommBytes = std::map<std::string, std::map<std::string, int64_t>>;
using WaitMs = std::map<std::string, std::map<std::string, double>>;
/// "tensor all_gather 4096 B, tensor all_reduce 64 B", or "none".
std::string to_string(const CommBytes& bytes);

/// Wall time of a step by phase; comm_exposed is waiting that nothing hid.
struct PhaseMs {
  double data = 0, forward = 0, backward = 0, optimizer = 0, comm_exposed = 0;
};

/// What utilisation is a share of: dense FLOP/s of one device.
struct PeakReport {
  double flops = kUnknown;
  std::string origin = {};                                  // "measured", "data sheet", "user"
  std::string unit = {};                                    // measured: what multiplied, "AVX2 fma"
  int64_t windows = 0;                                      // of its loop that were measured
  double median_flops = kUnknown, lowest_flops = kUnknown;  // of them; the best is `flops`, unless raised
  std::string raised_by = {};  // what ran faster than every window, "the products of step 3"; empty: nothing
};

struct StepReport {
  int64_t step = 0;        // 1-based
  int64_t tokens = 0;      // seen so far by the whole run, this step included
  double loss = kUnknown;  // mean over the step's tokens, before its update
  double lr = kUnknown, grad_norm = kUnknown;
  bool skipped = false;    // not finite: no update
  std::string bad_tensor;  // of a skipped step: the first tensor that was not finite
  double step_ms = kUnknown, tokens_per_s = kUnknown;
  double tflops_per_device = kUnknown;  // model FLOPs, full attention count
  double mfu = kUnknown, mfu_causal = kUnknown, hfu = kUnknown;
  double peak_tflops = kUnknown;  // what they are shares of: the best known at that time
  PhaseMs phase_ms;
  CommBytes comm_bytes;                                 // of this step
  WaitMs comm_wait_ms;                                  // of this rank, by axis and operation: comm_exposed in parts
  BytesByCategory memory_bytes;                         // peaks so far
  int64_t data_position = 0;                            // samples seen
  double epoch = kUnknown;                              // samples seen over the windows of the training data
  std::optional<device::PowerMeter::Reading> gpu = {};  // of the first rank's, at most a second old; none: not known
};

struct EvalReport {
  int64_t step = 0;  // after this step's update
  double loss = kUnknown, perplexity = kUnknown;
  std::optional<double> bits_per_byte = {};  // none without a tokenizer
  int64_t tokens = 0;                        // predicted
};

struct CheckpointReport {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double seconds = kUnknown;
  bool best = false;  // lowest validation loss so far
};

struct WarningReport {
  int64_t step = 0;
  std::string message;
};

/// Predicted or measured: one step's time, memory of the process (of all its ranks where they are threads), bytes over
/// all steps of the run.
struct Estimate {
  double step_ms = kUnknown;
  int64_t memory_bytes = 0;  // 0: not known
  CommBytes comm_bytes = {};
};

struct Environment {
  std::string version, commit;
  std::string device;        // "cpu"
  std::string isa;           // instruction set of the kernels in use
  std::string product_path;  // who computes matrix products, and in which type
  int ranks = 1, threads = 0;
};

/// Everything known before the first step.
struct StartReport {
  int64_t step = 0;        // completed steps: above 0 after a resume
  std::string name, time;  // time: UTC, ISO 8601 (utc_now())
  // The model with the values in force.
  std::string arch, compute;
  int64_t n_layer = 0, n_head = 0, n_kv_head = 0, d_model = 0, d_ff = 0, seq_len = 0, vocab_size = 0;
  int64_t parameters = 0;
  // The work.
  int64_t total_steps = 0;
  int64_t global_batch = 0, micro_batch = 0, accumulation = 0, data_replicas = 1;  // sequences
  int64_t train_tokens = 0, val_tokens = 0;                                        // in the data
  int64_t windows = 0;                                                             // of training: those of one epoch
  double unigram_entropy = kUnknown;  // nats per token of the validation text under the training text's frequencies
  FlopsPerToken flops;
  PeakReport peak;  // so far
  Estimate predicted;
  Environment environment;
  std::string config_toml;  // values in force
};

struct EndReport {
  int64_t step = 0, tokens = 0;
  std::string outcome;       // "finished", "stopped by SIGTERM", "stopped at the time limit"
  double wall_s = kUnknown;  // of this process, since its machine, model and weights were ready
  Estimate predicted, measured;
  PeakReport peak;  // the best that this process came to know
};

/// A generated text.
struct Sample {
  int64_t step = 0;
  std::string prompt, text;  // text: without the prompt
};

/// "2030-01-31T12:34:56Z"
std::string utc_now();

}  // namespace trainer::train
