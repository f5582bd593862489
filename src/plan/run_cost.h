#pragma once
// The cost of a whole run, and how it changes with the number of devices.
#include <optional>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace trainer::plan {

/// All steps of a run (train.steps or train.tokens) at the predicted speed, without evaluation and checkpoints.
struct RunCost {
  int64_t steps = 0;
  double tokens = 0, seconds = 0, device_hours = 0;
  double price = 0;  // 0: cluster.price_per_gpu_hour is not set
};
RunCost cost_of(const PlannedRun& run, const Cluster& cluster);
/// Returns "10000 steps, 5.24G tokens, take 3d04h: 2.43k GPU-hours, price 4.86k at 2 each".
std::string to_text(const RunCost& cost, const Cluster& cluster);

/// The fastest run on a number of devices, or the reason why there is none.
struct ScalingPoint {
  int64_t devices = 0;
  std::optional<PlannedRun> run;
  std::string problem;
};
/// Plans for each number of devices. If planning fails for all of them, throws the first error.
std::vector<ScalingPoint> plan_scaling(PlanRequest request, const Cluster& cluster,
                                       const std::vector<int64_t>& devices);
/// Returns the tokens/s per device relative to those of the first point that has a run.
double efficiency(const std::vector<ScalingPoint>& points, const ScalingPoint& point);
/// Returns the points as a table.
std::string to_text(const std::vector<ScalingPoint>& points, const Cluster& cluster);

}  // namespace trainer::plan
