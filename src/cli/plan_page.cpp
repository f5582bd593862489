#include "cli/plan_page.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "base/units.h"
#include "plan/plan_text.h"
#include "report/page.h"
#include "report/svg.h"

namespace trainer::cli {
namespace {

using report::svg::Bar;

std::string ranking(const plan::Plan& plan, size_t top) {
  std::map<std::string, int> colours;
  std::vector<Bar> parts;
  for (size_t i = 0; i < std::min(top, plan.runs.size()); ++i) {
    const plan::PlannedRun& run = plan.runs[i];
    const int colour = colours.try_emplace(run.strategy, static_cast<int>(colours.size())).first->second;
    const double ms = run.time.total() * 1e3;
    parts.push_back({format("{}: {}, batch {}", run.strategy, run.layout, run.config.train.micro_batch), ms,
                     format("{:.4g} ms", ms), colour});
  }
  return report::svg::bars("ranking", "Predicted time of a step", parts);
}

std::string split(const plan::PlannedRun& run) {
  std::vector<Bar> parts;
  for (const auto& [name, seconds] : plan::parts(run.time))
    if (seconds > 0)
      parts.push_back({name, seconds, format("{:.4g} ms", seconds * 1e3), static_cast<int>(parts.size() % 8)});
  return report::svg::stacked_bar("split", "Breakdown of the fastest layout's step time", parts);
}

}  // namespace

std::string plan_page(const plan::Plan& plan, const plan::Cluster& cluster, size_t top, const std::string& words) {
  const plan::PlannedRun& best = plan.runs.front();
  namespace page = report::page;
  return page::begin("Plan for " + cluster.name, "Plan for " + cluster.name,
                     format("{} with {}: {:.4g} ms/step", best.strategy, best.layout, best.time.total() * 1e3)) +
         page::section(ranking(plan, top)) + page::section(split(best)) +
         page::section("<pre>" + report::svg::escape(words) + "</pre>") + page::end();
}

std::string scaling_page(const std::vector<plan::ScalingPoint>& points, const plan::Cluster& cluster,
                         const std::string& words) {
  using report::svg::Point;
  report::svg::Series speed{"predicted", {}, 0, report::svg::Series::Style::dotted};
  report::svg::Series ideal{"linear scaling", {}, 1, report::svg::Series::Style::faint};
  std::vector<Bar> hours;
  for (const plan::ScalingPoint& point : points) {
    if (!point.run) continue;
    const auto devices = static_cast<double>(point.devices);
    speed.points.push_back({devices, point.run->tokens_per_s});
    ideal.points.push_back({devices, point.run->tokens_per_s / efficiency(points, point)});
    const plan::RunCost cost = cost_of(*point.run, cluster);
    hours.push_back({format("{} devices", point.devices), cost.device_hours,
                     format("{:.4g}, {}", cost.device_hours, format_percent(efficiency(points, point))), 0});
  }
  report::svg::LineChart chart{.id = "scaling", .title = "Predicted tokens/s", .x_name = "devices", .width = 1000};
  chart.from_zero = true;
  chart.series = {std::move(speed), std::move(ideal)};
  namespace page = report::page;
  const std::string title = "Scaling on " + cluster.name;
  return page::begin(title, title, format("{} device counts", points.size())) +
         page::section(report::svg::line_chart(std::move(chart))) +
         page::section(report::svg::bars("hours", "Device-hours of the run, and efficiency", hours)) +
         page::section("<pre>" + report::svg::escape(words) + "</pre>") + page::end();
}

}  // namespace trainer::cli
