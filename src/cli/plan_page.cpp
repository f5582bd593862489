#include "cli/plan_page.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "plan/plan_text.h"
#include "report/style.h"
#include "report/svg.h"

namespace trainer::cli {
namespace {

using report::svg::escape;
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
  return format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>Plan for {}</title>\n"
      "<style>{}</style></head>\n<body><main>\n<header><h1>Plan for {}</h1><p class=\"sub\">{} with {}: {:.4g} ms a "
      "step</p></header>\n<section>{}</section>\n<section>{}</section>\n<section><pre>{}</pre></section>\n"
      "</main></body></html>\n",
      escape(cluster.name), report::kReportStyle, escape(cluster.name), escape(best.strategy), escape(best.layout),
      best.time.total() * 1e3, ranking(plan, top), split(best), escape(words));
}

}  // namespace trainer::cli
