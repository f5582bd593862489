#include "plan/run_cost.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "config/layouts.h"
#include "config/text.h"
#include "plan/plan_text.h"

namespace trainer::plan {
namespace {

int64_t devices_of(const PlannedRun& run) { return config::ranks_of_replica(run.config) * run.config.parallel.data; }
double tokens_of_step(const PlannedRun& run) {
  return static_cast<double>(run.config.train.global_batch * run.config.model.seq_len);
}
const char* hours_name(const Cluster& cluster) { return cluster.cpu ? "rank-hours" : "GPU-hours"; }
std::string price_text(double price) { return price > 0 ? format_count(price) : "-"; }

}  // namespace

RunCost cost_of(const PlannedRun& run, const Cluster& cluster) {
  RunCost cost{.steps = config::total_steps(run.config)};
  const auto steps = static_cast<double>(cost.steps);
  cost.tokens = steps * tokens_of_step(run);
  cost.seconds = steps * run.time.total();
  cost.device_hours = cost.seconds / 3600 * static_cast<double>(devices_of(run));
  cost.price = cost.device_hours * cluster.price_per_gpu_hour;
  return cost;
}

std::string to_text(const RunCost& cost, const Cluster& cluster) {
  std::string text = format("{} steps, {} tokens, take {}: {} {}", cost.steps, format_count(cost.tokens),
                            format_duration(cost.seconds), format_count(cost.device_hours), hours_name(cluster));
  if (cost.price > 0) text += format(", price {} at {:.4g} each", price_text(cost.price), cluster.price_per_gpu_hour);
  return text;
}

std::vector<ScalingPoint> plan_scaling(PlanRequest request, const Cluster& cluster,
                                       const std::vector<int64_t>& devices) {
  std::vector<ScalingPoint> points;
  std::optional<Error> first;
  request.shown = 3;  // only the fastest is used
  for (const int64_t count : devices) {
    request.devices = count;
    ScalingPoint& point = points.emplace_back(ScalingPoint{.devices = count, .run = {}, .problem = {}});
    try {
      Plan plan = plan_layouts(request, cluster);
      if (plan.runs.empty()) throw Error(Code::plan, why_nothing_fits(plan));
      point.run = std::move(plan.runs.front());
    } catch (const Error& error) {
      if (error.code() != Code::plan && error.code() != Code::config) throw;
      point.problem = error.what();
      if (!first) first = error;
    }
  }
  if (first && std::ranges::none_of(points, [](const ScalingPoint& point) { return point.run.has_value(); }))
    throw *first;
  return points;
}

double efficiency(const std::vector<ScalingPoint>& points, const ScalingPoint& point) {
  const auto first = std::ranges::find_if(points, [](const ScalingPoint& each) { return each.run.has_value(); });
  const auto rate = [](const ScalingPoint& at) { return at.run->tokens_per_s / static_cast<double>(at.devices); };
  return rate(point) / rate(*first);
}

std::string to_text(const std::vector<ScalingPoint>& points, const Cluster& cluster) {
  size_t width = 26;  // width of the layout column
  for (const ScalingPoint& point : points)
    if (point.run) width = std::max(width, point.run->layout.size());
  std::string text = format("{:>7} {:<12} {:<{}} {:>5} {:<12} {:>10} {:>10} {:>7} {:>10} {:>9} {:>9} {:>10} {:>9}\n",
                            "devices", "strategy", "layout", width, "batch", "recompute", "ms/step", "tokens/s", "mfu",
                            "efficiency", "memory", "time", hours_name(cluster), "price");
  for (const ScalingPoint& point : points) {
    if (!point.run) {
      text += format("{:>7} {}\n", point.devices, point.problem);
      continue;
    }
    const PlannedRun& run = *point.run;
    const RunCost cost = cost_of(run, cluster);
    text += format("{:>7} {:<12} {:<{}} {:>5} {:<12} {:>10.4g} {:>10} {:>7} {:>10} {:>9} {:>9} {:>10} {:>9}\n",
                   point.devices, run.strategy, run.layout, width, run.config.train.micro_batch,
                   config::recompute_text(run.config.train), run.time.total() * 1e3, format_count(run.tokens_per_s),
                   format_percent(run.mfu), format_percent(efficiency(points, point)),
                   format_bytes(static_cast<double>(run.plan.total)), format_duration(cost.seconds),
                   format_count(cost.device_hours), price_text(cost.price));
  }
  return text;
}

}  // namespace trainer::plan
