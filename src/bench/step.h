#pragma once
// `trainer bench step`: times whole optimizer steps, and each kind of operator in them.
#include <string>
#include <vector>

#include "base/memory_probe.h"
#include "ops/gemm_tuning.h"
#include "setup/machine.h"
#include "setup/peak.h"

namespace trainer::bench {

struct OpShare {
  std::string name;
  int64_t calls = 0;                  // per step
  double ms = 0, gflops = 0, gb = 0;  // per step: wall time, work, memory traffic as reported by the operators
  double least_ms = 0;                // lower bound from the roofline
};
/// The work of a step as counted by a dry run, largest traffic first; nothing is computed or timed.
struct StepCount {
  int64_t parameters = 0, tokens = 0;
  std::string compute;
  double model_flops_per_token = 0;
  std::vector<OpShare> operators;
};
StepCount count_step(const config::Config& config, const setup::Machine& machine);
std::string to_text(const StepCount& count);

struct StepBench {
  int64_t parameters = 0, tokens = 0;  // tokens per step
  int threads = 0;
  std::string compute, product_path;
  std::vector<double> step_ms;  // every timed step
  /// The best window before, between and after the steps, or the rate of a step or of its operators if that is higher.
  setup::PeakReport peak;
  double median_ms = 0, tokens_per_s = 0, model_tflops = 0;
  double mfu = 0, mfu_causal = 0, hfu = 0;  // for the median step
  double copy_gb_per_s = 0;                 // the roofline's memory bandwidth
  std::vector<OpShare> operators;           // slowest first; "other" is the time outside operators
  int64_t memory_bytes = 0;
};
/// Times `steps` steps after `warmup` steps, with fixed seeds, on the tokens of these files, or on random tokens if
/// there are none. The configuration's own data are not used, so data.vocab_size must be set.
StepBench bench_step(const config::Config& config, const setup::Machine& machine, int warmup, int steps,
                     const std::vector<std::string>& files = {});
std::string to_text(const StepBench& bench);

/// Measures up to `most` algorithms for every GEMM of this configuration's step on a GPU, and returns the fastest.
/// Operands, epilogues and workspace are those of one rank of the layout; the other ranks are not needed. Measures all
/// forms, or only GemmForm::as_is if there is not enough memory for transposed copies.
ops::MeasuredGemms tune_products(const config::Config& config, const setup::Machine& machine, int most, int repeats);

/// Returns the growth of the process's anonymous memory in bytes since `probe` was made, after `steps` steps on random
/// tokens.
int64_t memory_of_steps(const config::Config& config, const setup::Machine& machine, int steps, MemoryProbe& probe);

}  // namespace trainer::bench
