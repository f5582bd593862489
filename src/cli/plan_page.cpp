#include "cli/plan_page.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "plan/plan_text.h"
#include "report/page.h"
#include "report/svg.h"

namespace trainer::cli {
namespace {

using report::svg::Part;

std::string ranking(const plan::Plan& plan, size_t top) {
  std::map<std::string, int> colours;
  std::vector<Part> parts;
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
  std::vector<Part> parts;
  for (const auto& [name, seconds] : plan::parts(run.time))
    if (seconds > 0)
      parts.push_back({name, seconds, format("{:.4g} ms", seconds * 1e3), static_cast<int>(parts.size() % 8)});
  return report::svg::stacked_bar("split", "Where the fastest layout's time goes", parts);
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

}  // namespace trainer::cli
