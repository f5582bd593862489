#pragma once
// A plan as text: the table, the breakdown of a layout's time, and its configuration.
#include <string>

#include "plan/planner.h"

namespace trainer::plan {

/// Returns the `top` fastest runs as a table, with the reason why each is slower than the first.
std::string to_text(const Plan& plan, const Cluster& cluster, size_t top);

/// Returns the breakdown of a run's time, its sensitivities, and the changes that would make the next strategy faster.
std::string explain(const Plan& plan, const Cluster& cluster, const PlanRequest& request);

/// The parts of a step by name, in seconds; they add up to StepTime::total().
std::vector<std::pair<std::string, double>> parts(const StepTime& time);

/// The measured time of steps relative to their prediction: most runs are in this band.
struct ErrorBand {
  double least, most;
};
ErrorBand error_band(const Cluster& cluster);

/// Returns the run's configuration as a file: the given keys, the keys of the layout, and the cluster file as
/// hardware.profile, so that the run can predict its step time.
std::string emitted(const PlannedRun& run, const Cluster& cluster);

/// Explains why nothing fits: the smallest layout, its largest category of memory, and the memory that it needs.
std::string why_nothing_fits(const Plan& plan);

}  // namespace trainer::plan
