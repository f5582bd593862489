#include "report/run_sections.h"

#include <algorithm>
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

}  // namespace

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
