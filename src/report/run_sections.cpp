#include "report/run_sections.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "measure/units.h"
#include "report/page.h"
#include "report/svg.h"

namespace trainer::report {
namespace {

using AxisAndOperation = std::pair<std::string, std::string>;

/// What is known of one operation along one axis.
struct Moved {
  int64_t predicted = 0, sent = 0;  // bytes of the last process that ended in order
  double wait_ms = 0;               // of the first rank, mean over all steps
};

std::map<AxisAndOperation, Moved> moved_in(const History& history) {
  std::map<AxisAndOperation, Moved> all;
  if (!history.ends.empty()) {
    for (const auto& [axis, operations] : history.ends.back().predicted.comm_bytes)
      for (const auto& [operation, bytes] : operations) all[{axis, operation}].predicted = bytes;
    for (const auto& [axis, operations] : history.ends.back().measured.comm_bytes)
      for (const auto& [operation, bytes] : operations) all[{axis, operation}].sent = bytes;
  }
  for (const StepReport& step : history.steps)
    for (const auto& [axis, operations] : step.comm_wait_ms)
      for (const auto& [operation, ms] : operations)
        all[{axis, operation}].wait_ms += ms / static_cast<double>(history.steps.size());
  return all;
}

std::string ms_text(double ms) { return std::isfinite(ms) ? format("{:.4g} ms", ms) : "-"; }

page::Grid::Row compared(const std::string& name, double predicted, double measured, std::string (*text)(double)) {
  const double ratio = measured / predicted;
  return {name, {text(predicted), text(measured), std::isfinite(ratio) ? format("{:.2f}", ratio) : "-"}};
}

/// Returns the bytes of each kind: "gradient 1.50 MiB, refresh 768 KiB".
std::string listed(const std::map<std::string, int64_t>& bytes) {
  std::string text;
  for (const auto& [kind, count] : bytes)
    if (count > 0)
      text += format("{}{} {}", text.empty() ? "" : ", ", kind, measure::format_bytes(static_cast<double>(count)));
  return text;
}

/// Draws what steps waited for updates, and how long updates took, over the steps.
std::string update_chart(const History& history) {
  constexpr size_t kMostPoints = 500;
  svg::LineChart chart{.id = "updates", .title = "Updates, ms a step", .x_name = "step", .width = 1000, .height = 260};
  chart.from_zero = true;
  svg::Series waits{"waited for", {}, 1}, updates{"from the norm to new weights", {}, 0};
  for (const StepReport& step : history.steps) {
    if (!step.offload) continue;
    const auto at = static_cast<double>(step.step);
    waits.points.push_back({at, step.offload->exposed_ms});
    updates.points.push_back({at, step.offload->update_ms});
  }
  for (svg::Series* series : {&updates, &waits}) {
    series->points = svg::downsample(series->points, kMostPoints);
    chart.series.push_back(std::move(*series));
  }
  return svg::line_chart(chart);
}

}  // namespace

std::string prediction(const Summary& summary) {
  if (!std::isfinite(summary.predicted_step_ms)) return "";
  page::Grid grid{.head = {"predicted", "measured", "ratio"}, .rows = {}};
  const double waits = summary.phase_ms.comm_exposed, expected = summary.predicted_wait_ms;
  grid.rows.push_back(compared("step", summary.predicted_step_ms, summary.mean_step_ms, ms_text));
  if (std::isfinite(expected)) {
    grid.rows.push_back(
        compared("compute", summary.predicted_step_ms - expected, summary.mean_step_ms - waits, ms_text));
    if (expected > 0 || waits > 0) grid.rows.push_back(compared("waiting for communication", expected, waits, ms_text));
  }
  if (summary.predicted_memory > 0 && summary.measured_memory > 0)
    grid.rows.push_back(compared("memory", static_cast<double>(summary.predicted_memory),
                                 static_cast<double>(summary.measured_memory),
                                 [](double bytes) { return measure::format_bytes(bytes); }));
  return "<h2>The plan and the run</h2>" + page::table(grid);
}

std::string offload(const Summary& summary, const History& history) {
  if (!summary.offload) return "";
  const OffloadReport& last = *summary.offload;
  const auto all = static_cast<double>(std::max<int64_t>(1, last.host + last.streamed + last.resident));
  const auto part = [&](int64_t count) { return measure::format_percent(static_cast<double>(count) / all); };
  page::Facts facts{
      {"parameters", format("{} updated on the host, {} streamed to the device and back, {} resident there",
                            part(last.host), part(last.streamed), part(last.resident))}};
  facts.emplace_back("moved in a step", listed(last.bytes));
  facts.emplace_back("a step waits", ms_text(last.exposed_ms) + " (median)");
  if (last.update_ms > 0) {
    const bool here = !std::isfinite(last.emulated_ms) && last.predicted_ms > 0;
    facts.emplace_back("the last update",
                       ms_text(last.update_ms) + (here ? format(", {} predicted", ms_text(last.predicted_ms)) : ""));
  }
  if (std::isfinite(last.emulated_ms))
    facts.emplace_back("on the emulated device",
                       format("{} by its clock, {} predicted", ms_text(last.emulated_ms), ms_text(last.predicted_ms)));
  std::vector<svg::Part> lanes;
  for (const auto& [lane, ms] : last.busy_ms) {
    if (!(ms > 0)) continue;
    lanes.push_back({lane, ms, ms_text(ms), 5});
    std::ranges::replace(lanes.back().name, '_', ' ');
  }
  return "<h2>Optimizer offload</h2>" + page::table(facts) + update_chart(history) +
         svg::bars("lanes", "Lanes at work in the last update", lanes);
}

std::string communication(const History& history) {
  const std::map<AxisAndOperation, Moved> all = moved_in(history);
  if (all.empty()) return "";
  page::Grid grid{.head = {"sent", "predicted", "ratio", "waiting, ms a step"}, .rows = {}};
  for (const auto& [what, moved] : all) {
    const auto bytes = [&](int64_t count) {
      return count > 0 ? measure::format_bytes(static_cast<double>(count)) : std::string("-");
    };
    const bool known = moved.predicted > 0;
    const double ratio = static_cast<double>(moved.sent) / static_cast<double>(std::max<int64_t>(1, moved.predicted));
    grid.rows.push_back({.name = what.first + " " + what.second,
                         .cells = {bytes(moved.sent), bytes(moved.predicted), known ? format("{:.4g}", ratio) : "-",
                                   format("{:.3f}", moved.wait_ms)},
                         .marked = known && moved.sent != moved.predicted});
  }
  return "<h2>Communication by axis</h2>" + page::table(grid);
}

std::string time_line(const History& history) {
  svg::Lane processes{"processes", {}, 2}, evaluations{"evaluations", {}, 0}, checkpoints{"checkpoints", {}, 5},
      warnings{"warnings", {}, 1};
  const auto at = [](int64_t step) { return static_cast<double>(step); };
  for (const int64_t step : history.starts)
    processes.marks.push_back({at(step), step == 0 ? "started" : format("resumed from step {}", step)});
  for (const EndReport& end : history.ends)
    processes.marks.push_back({at(end.step), format("{} at step {}", end.outcome, end.step)});
  for (const EvalReport& eval : history.evals)
    evaluations.marks.push_back({at(eval.step), format("step {}: validation loss {:.4f}", eval.step, eval.loss)});
  for (const CheckpointReport& saved : history.checkpoints)
    checkpoints.marks.push_back({at(saved.step), format("step {}: {} in {:.2f} s{}", saved.step,
                                                        measure::format_bytes(static_cast<double>(saved.bytes)),
                                                        saved.seconds, saved.best ? ", the best so far" : "")});
  for (const WarningReport& warning : history.warnings) warnings.marks.push_back({at(warning.step), warning.message});
  const int64_t first = history.starts.empty() ? 0 : std::ranges::min(history.starts);
  const int64_t last = history.steps.empty() ? first : history.steps.back().step;
  if (history.steps.empty()) return "";
  return svg::time_line("events", "Time line", "step", at(first), at(last),
                        {processes, evaluations, checkpoints, warnings});
}

}  // namespace trainer::report
