#pragma once
// A plan in words: the table, where the time of a layout goes, and the configuration of a layout.
#include <string>

#include "plan/planner.h"

namespace trainer::plan {

/// Returns the `top` fastest runs as a table, with the reason why each is slower than the first.
std::string to_text(const Plan& plan, const Cluster& cluster, size_t top);

/// Returns the breakdown of a run's time, its sensitivities, and the changes that would make the next strategy faster.
std::string explain(const Plan& plan, const Cluster& cluster, const PlanRequest& request);

/// Returns the part that makes a run slower than another: "waits along tensor: 12.3 ms more".
std::string what_is_slower(const PlannedRun& run, const PlannedRun& than);

/// The parts of a step by name, in seconds; they add up to StepTime::total().
std::vector<std::pair<std::string, double>> parts(const StepTime& time);

/// Returns the names of machine constants with the gain of a step when each is doubled (or latency halved), largest
/// first.
struct Sensitivity {
  std::string what;
  double seconds = 0;  // of a step with it
};
std::vector<Sensitivity> sensitivities(const PlannedRun& run, const Cluster& cluster, int64_t vocab);

/// Returns the run's configuration as a file: the keys that were given, and those of the layout.
std::string emitted(const PlannedRun& run, const Cluster& cluster);

}  // namespace trainer::plan
