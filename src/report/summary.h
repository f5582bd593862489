#pragma once
// Summary of a run, for the last lines on stderr and for the report. It is computed from the run's history, so it can
// be computed again from a run folder.
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/median.h"
#include "report/history.h"

namespace trainer::report {

struct Summary {
  StartReport start;
  setup::PeakReport peak;  // the denominator of utilisation: the best peak that the last process found
  std::string outcome;     // outcome of the last process; "did not end normally" if the log just stops
  int64_t step = 0, tokens = 0, skipped_steps = 0;
  double epoch = kUnknown;  // at the end of the run
  double first_loss = kUnknown;
  double last_loss = kUnknown;  // mean over the last tenth of the steps, at most ten
  bool chats = false;           // trained on conversations
  std::optional<EvalReport> last_eval;
  std::optional<EvalReport> best_eval;  // among those that are comparable with the last one
  int64_t medians_from = 0;             // the first step in the setup of the last process; 0: that process made no step
  bool setup_changed = false;           // earlier steps ran in a different setup
  bool warm_up_counts = false;          // true: too few steps to exclude the first two from the medians
  // Medians over the steps in that setup, without the first two, which warm up:
  double step_ms = kUnknown, tokens_per_s = kUnknown, tflops_per_device = kUnknown;
  double mfu = kUnknown, mfu_causal = kUnknown, hfu = kUnknown;
  double bubble = kUnknown;                                           // measured on CPUs, with several stages
  double predicted_bubble = kUnknown;                                 // known with several stages
  double predicted_step_ms = kUnknown, predicted_wait_ms = kUnknown;  // not known without a profile
  PhaseMs phase_ms;                                                   // means over the same steps
  double mean_step_ms = 0;                                            // mean over them of the whole step
  double optimizer_flops = 0;                                         // FLOPs of an update's GEMMs on rank 0; 0: none
  double expert_load = kUnknown;                                      // mean of the last ten load_max
  double wall_s = kUnknown;                                           // sum over all processes that ended normally
  int64_t predicted_memory = 0, measured_memory = 0;                  // bytes of the process; 0: not known
  std::optional<OffloadReport> offload;                               // last step's; exposed_ms: median over the steps
  BytesByCategory memory_by_category;
  std::vector<Sample> samples;
};

/// Returns the median of the finite values of the items; NaN if there are none. `value`: a member or a function.
template <typename Items, typename F>
double median_of(const Items& items, F value) {
  std::vector<double> values;
  for (const auto& item : items)
    if (const double x = std::invoke(value, item); std::isfinite(x)) values.push_back(x);
  return values.empty() ? kUnknown : median(std::move(values));
}

/// `samples` are in the order in which they were generated. Returns an empty summary for an empty history.
Summary summarize(const History& history, std::vector<Sample> samples);

/// Returns "median", or "median since step 21, when the setup changed".
std::string median_text(const Summary& summary);

/// Returns "mfu 41.2 %, causal 40.1 %, hardware 40.1 % of 0.193 TFLOP/s (…)", and explains values above 100 %.
std::string utilisation_text(const Summary& summary);

/// Returns "31.2 ms/step (24.0 %); 6.54G FLOPs in GEMMs per rank, 0.39 times the model's"; empty for an optimizer
/// without GEMMs.
std::string update_text(const Summary& summary);

/// Returns "50.0 % updated on the host, 50.0 % streamed, 0 % resident; 1.20 ms/step exposed (median)".
std::string offload_text(const OffloadReport& offload);

/// A part of a step: its predicted time, and the mean of its measured times.
struct PredictedPart {
  const char* name;
  double predicted, measured;  // ms
};
/// Returns the parts, which add up to the step; empty without a prediction.
std::vector<PredictedPart> predicted_parts(const Summary& summary);
/// Returns "12.3 ms/step, measured 13.1 (1.07x); largest difference: compute, …"; empty without a prediction.
std::string prediction_text(const Summary& summary);

/// Returns the summary and the paths of the run's files, aligned for a terminal; unknown values are omitted.
std::vector<std::string> summary_lines(const Summary& summary, const std::filesystem::path& run_dir);

}  // namespace trainer::report
