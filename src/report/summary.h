#pragma once
// Summary of a run, for the last lines on stderr and for the report. It is computed from the run's history, so a run
// folder is enough to compute it again.
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
  std::string outcome;     // of the last process; "not ended in order" if the log just stops
  int64_t step = 0, tokens = 0, skipped_steps = 0;
  double epoch = kUnknown;  // at the end of the run
  double first_loss = kUnknown;
  double last_loss = kUnknown;  // mean over the last tenth of the steps, at most ten
  std::optional<EvalReport> last_eval, best_eval;
  int64_t medians_from = 0;     // the first step in the setup of the last process; 0: it made none
  bool setup_changed = false;   // earlier steps ran in a different setup
  bool warm_up_counts = false;  // so few steps in that setup that the first two are not left out of the medians
  // Medians over the steps in that setup without the first two, which warm up.
  double step_ms = kUnknown, tokens_per_s = kUnknown, tflops_per_device = kUnknown;
  double mfu = kUnknown, mfu_causal = kUnknown, hfu = kUnknown;
  double predicted_step_ms = kUnknown, predicted_wait_ms = kUnknown;  // not known without a profile
  PhaseMs phase_ms;                                                   // means over the same steps
  double mean_step_ms = 0;                                            // also a mean: the phases, and the rest of a step
  double wall_s = kUnknown;                                           // over all processes that ended normally
  int64_t predicted_memory = 0, measured_memory = 0;                  // of the process; 0: not known
  std::optional<OffloadReport> offload;                               // of the last step; exposed_ms: the median of all
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

/// `samples` are in the order in which they were drawn. An empty history gives an empty summary.
Summary summarize(const History& history, std::vector<Sample> samples);

/// Returns "median", or "median since step 21, as the steps before ran in another setup".
std::string median_text(const Summary& summary);

/// Returns "mfu 41.2 %, causal 40.1 %, hardware 40.1 % of 0.193 TFLOP/s (…)", with an explanation of more than 100 %.
std::string utilisation_text(const Summary& summary);

/// Returns "50.0 % updated on the host, 50.0 % streamed, 0 % resident; a step waits …".
std::string offload_text(const OffloadReport& offload);

/// Returns the outcome and the paths of the files, aligned for a terminal; unknown values are skipped.
std::vector<std::string> summary_lines(const Summary& summary, const std::filesystem::path& run_dir);

}  // namespace trainer::report
