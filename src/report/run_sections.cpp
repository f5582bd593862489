#include "report/run_sections.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/units.h"
#include "report/page.h"
#include "report/ranks.h"
#include "report/svg.h"

namespace trainer::report {
namespace {

using AxisAndOperation = std::pair<std::string, std::string>;

/// The communication of one operation along one axis.
struct Moved {
  int64_t predicted = 0, sent = 0;  // bytes, in the last process that ended normally
  double wait_ms = 0;               // on rank 0: mean over the steps in the last setup
};

std::map<AxisAndOperation, Moved> moved_in(const History& history) {
  std::map<AxisAndOperation, Moved> all;
  if (!history.ends.empty()) {
    for (const auto& [axis, operations] : history.ends.back().predicted.comm_bytes)
      for (const auto& [operation, bytes] : operations) all[{axis, operation}].predicted = bytes;
    for (const auto& [axis, operations] : history.ends.back().measured.comm_bytes)
      for (const auto& [operation, bytes] : operations) all[{axis, operation}].sent = bytes;
  }
  const std::span<const StepReport> steps = history.last_setup();
  for (const StepReport& step : steps)
    for (const auto& [axis, operations] : step.comm_wait_ms)
      for (const auto& [operation, ms] : operations)
        all[{axis, operation}].wait_ms += ms / static_cast<double>(steps.size());
  return all;
}

std::string ms_text(double ms) { return std::isfinite(ms) ? format("{:.4g} ms", ms) : "-"; }

page::Table::Row compared(const std::string& name, double predicted, double measured, std::string (*text)(double)) {
  const double ratio = measured / predicted;
  return {name, {text(predicted), text(measured), std::isfinite(ratio) ? format("{:.2f}", ratio) : "-"}};
}

/// Plots the total and the exposed time of updates against steps.
std::string update_chart(const History& history) {
  svg::LineChart chart{.id = "updates", .title = "Updates, ms/step", .x_name = "step", .width = 1000, .height = 260};
  chart.from_zero = true;
  chart.series = {{"from gradient norm to updated weights", {}, 0}, {"exposed", {}, 1}};
  for (const StepReport& step : history.steps) {
    if (!step.offload) continue;
    const auto at = static_cast<double>(step.step);
    chart.series[0].points.push_back({at, step.offload->update_ms});
    chart.series[1].points.push_back({at, step.offload->exposed_ms});
  }
  return svg::line_chart(std::move(chart));
}

}  // namespace

std::string prediction(const Summary& summary) {
  if (!std::isfinite(summary.predicted_step_ms)) return "";
  page::Table grid{.head = {"predicted", "measured", "ratio"}, .rows = {}};
  grid.rows.push_back(compared("step", summary.predicted_step_ms, summary.mean_step_ms, ms_text));
  for (const auto& [name, predicted, measured] : predicted_parts(summary))
    if (predicted > 0 || measured > 0) grid.rows.push_back(compared(name, predicted, measured, ms_text));
  if (summary.predicted_memory > 0 && summary.measured_memory > 0)
    grid.rows.push_back(compared("memory", static_cast<double>(summary.predicted_memory),
                                 static_cast<double>(summary.measured_memory),
                                 [](double bytes) { return format_bytes(bytes); }));
  return "<h2>Predicted and measured</h2>" + page::table(grid) + "<p>Step: " + svg::escape(prediction_text(summary)) +
         ".</p>";
}

std::string optimizer_offload(const History& history) {
  std::vector<const OffloadReport*> steps;
  for (const StepReport& step : history.last_setup())
    if (step.offload && !step.skipped) steps.push_back(&*step.offload);
  if (steps.empty()) return "";
  const OffloadReport& last = *steps.back();
  const double all = static_cast<double>(std::max<int64_t>(1, last.host + last.streamed + last.resident));
  const auto part = [&](int64_t count) { return format_percent(static_cast<double>(count) / all); };
  const bool emulated = std::isfinite(last.emulated_ms);
  const double rate = median_of(steps, &OffloadReport::parameters_per_s);
  const page::Facts facts = {
      {"updated on the host", part(last.host)},
      {"streamed through the device", part(last.streamed)},
      {"resident on the device", part(last.resident)},
      {"subgroups", format("{} of at most {} parameters, {} slots, {} resident", last.subgroups, last.largest_subgroup,
                           last.slots, last.resident_subgroups)},
      {"host memory", last.host_memory == "plain" ? "" : last.host_memory},
      {"update", emulated ? "" : ms_text(median_of(steps, &OffloadReport::update_ms))},
      {"on the emulated device", ms_text(median_of(steps, &OffloadReport::emulated_ms))},
      {"predicted", ms_text(median_of(steps, &OffloadReport::predicted_ms))},
      {"exposed time per step", ms_text(median_of(steps, &OffloadReport::exposed_ms))},
      {"overlapped share", format_percent(median_of(steps, &OffloadReport::overlapped))},
      {"rate", std::isfinite(rate) ? format_count(rate) + " parameters/s" : ""},
      {"share of the host's memory bandwidth", format_percent(median_of(steps, &OffloadReport::memory_share))}};
  page::Table moved{.head = {"bytes/step"}, .rows = {}}, streams{.head = {"busy, ms/step"}, .rows = {}};
  for (const auto& [what, bytes] : last.bytes) moved.rows.push_back({.name = what, .cells = {page::bytes_text(bytes)}});
  for (const auto& [stream, unused] : last.busy_ms)
    streams.rows.push_back({.name = stream, .cells = {format("{:.3f}", median_of(steps, [&](const OffloadReport* step) {
                                                               const auto found = step->busy_ms.find(stream);
                                                               return found == step->busy_ms.end() ? kUnknown
                                                                                                   : found->second;
                                                             }))}});
  return "<h2>Optimizer offload</h2><p>Medians over the steps, on rank 0.</p>" + page::table(facts) +
         page::table(moved) + (emulated ? "" : page::table(streams)) + update_chart(history);
}

std::string communication(const Summary& summary, const History& history) {
  const std::map<AxisAndOperation, Moved> all = moved_in(history);
  if (all.empty()) return "";
  page::Table grid{.head = {"sent", "predicted", "ratio", "exposed, ms/step"}, .rows = {}};
  for (const auto& [what, moved] : all) {
    const bool known = moved.predicted > 0;
    const double ratio = static_cast<double>(moved.sent) / static_cast<double>(std::max<int64_t>(1, moved.predicted));
    grid.rows.push_back({.name = what.first + " " + what.second,
                         .cells = {page::bytes_text(moved.sent), page::bytes_text(moved.predicted),
                                   known ? format("{:.4g}", ratio) : "-", format("{:.3f}", moved.wait_ms)},
                         .marked = known && moved.sent != moved.predicted});
  }
  std::string stages;
  for (const std::string& line : summary.start.stages) stages += svg::escape(line) + "\n";
  if (!stages.empty()) {
    page::Table bubble{.head = {"predicted", "measured", "ratio"}, .rows = {}};
    bubble.rows.push_back(compared("bubble", summary.predicted_bubble, summary.bubble,
                                   [](double share) { return format_percent(share); }));
    stages = "<pre>" + stages + "</pre>" + page::table(bubble);
  }
  return "<h2>Communication by axis</h2>" + stages + page::table(grid);
}

std::string ranks(const History& history) {
  constexpr size_t kRows = 64, kColumns = 200;
  if (history.ranks.empty()) return "";
  const size_t ranks = history.ranks.back().own_ms.size();
  // With more ranks than are listed, windows have quantiles, which belong to no rank.
  const bool quantiles = history.start && static_cast<size_t>(history.start->environment.ranks) > kMostRanksListed;
  std::vector<const RanksReport*> windows;
  std::vector<std::vector<double>> ratios;  // multiples of the median of the rank's stage, by window and rank
  SlowWindows slow;
  std::map<size_t, size_t> often;  // rank → its slow windows, the most of ten
  for (const RanksReport& window : history.ranks) {
    if (window.own_ms.size() != ranks || !(window.median_ms > 0))
      continue;  // before a resume on another number of ranks
    windows.push_back(&window);
    std::vector<double> typical(ranks, window.median_ms);
    if (!quantiles) typical = stage_medians(window.own_ms, window.stages);
    std::vector<double>& ratio = ratios.emplace_back();
    for (size_t rank = 0; rank < ranks; ++rank)
      ratio.push_back(typical[rank] > 0 ? window.own_ms[rank] / typical[rank] : 1);
    if (quantiles) continue;
    slow.add(ratio);
    for (const SlowWindows::Rank& rank : slow.often_slow()) often[rank.rank] = std::max(often[rank.rank], rank.windows);
  }
  if (windows.empty()) return "";
  svg::HeatMap map{.id = "ranks", .title = "Ranks: own time of a step, relative to the median", .x_name = "step"};
  map.from = static_cast<double>(windows.front()->step);
  map.to = static_cast<double>(windows.back()->step);
  map.least = 1;
  map.most = 1.5;
  map.description = format("{} in {}", counted(static_cast<int64_t>(ranks), quantiles ? "quantile" : "rank"),
                           counted(std::ssize(windows), "window"));
  const auto name = [&](size_t row) {
    return quantiles ? format("quantile {:.3f}", static_cast<double>(row + 1) / static_cast<double>(ranks))
                     : format("rank {}", row);
  };
  // A cell shows the largest value of several ranks and windows if there are many.
  const size_t per_row = (ranks - 1) / kRows + 1, per_column = (windows.size() - 1) / kColumns + 1;
  for (size_t first = 0; first < ranks; first += per_row) {
    svg::HeatMap::Row& row = map.rows.emplace_back(svg::HeatMap::Row{name(first), {}});
    for (size_t begin = 0; begin < windows.size(); begin += per_column) {
      double most = 0;
      std::string text;
      for (size_t w = begin; w < std::min(windows.size(), begin + per_column); ++w)
        for (size_t rank = first; rank < std::min(ranks, first + per_row); ++rank) {
          const double ratio = ratios[w][rank];
          if (ratio <= most) continue;
          most = ratio;
          text = format("{}, step {}: {:.4g} ms, {:.2f} x the median", name(rank), windows[w]->step,
                        windows[w]->own_ms[rank], ratio);
        }
      row.cells.push_back({most, text});
    }
  }
  page::Table grid{.head = {"windows of the last ten"}, .rows = {}};
  for (const auto& [rank, count] : often)
    grid.rows.push_back({.name = format("rank {}", rank), .cells = {format("{}", count)}});
  return "<h2>Ranks</h2>" + svg::heat_map(map) +
         (often.empty() ? "" : format("<p>Often more than {} x the median:</p>", kSlow) + page::table(grid));
}

std::string experts(const History& history) {
  svg::LineChart load{.id = "load", .title = "Largest load of an expert, relative to the mean", .x_name = "step"};
  svg::LineChart idle{.id = "idle", .title = "Experts without rows, of all layers", .x_name = "step"};
  svg::LineChart entropy{.id = "entropy", .title = "Entropy of the routers, nats", .x_name = "step"};
  svg::LineChart* const charts[] = {&load, &idle, &entropy};
  for (svg::LineChart* chart : charts) {
    chart->width = 480;
    chart->height = 260;
    chart->from_zero = true;
    chart->series.push_back({"", {}});
  }
  for (const StepReport& step : history.steps) {
    if (!step.experts) continue;
    const auto at = static_cast<double>(step.step);
    load.series[0].points.push_back({at, step.experts->load_max});
    idle.series[0].points.push_back({at, static_cast<double>(step.experts->idle)});
    entropy.series[0].points.push_back({at, step.experts->entropy});
  }
  if (load.series[0].points.empty()) return "";
  std::string map_of_choices;
  if (!history.ends.empty() && !history.ends.back().choices.empty()) {
    const std::vector<std::vector<int64_t>>& choices = history.ends.back().choices;
    svg::HeatMap map{
        .id = "choices", .title = "Load of each expert, relative to the mean of its layer", .x_name = "expert"};
    map.to = static_cast<double>(choices.front().size());
    map.most = 2;
    map.description = format("{} by {} experts", counted(std::ssize(choices), "layer"), choices.front().size());
    const int64_t every = history.start ? history.start->model.moe_every : 1;
    for (size_t l = 0; l < choices.size(); ++l) {
      const std::string name = format("layer {}", static_cast<int64_t>(l + 1) * every - 1);
      svg::HeatMap::Row& row = map.rows.emplace_back(svg::HeatMap::Row{name, {}});
      const double mean =
          std::reduce(choices[l].begin(), choices[l].end(), 0.0) / static_cast<double>(choices[l].size());
      for (size_t e = 0; e < choices[l].size(); ++e) {
        const double share = mean > 0 ? static_cast<double>(choices[l][e]) / mean : 0;
        row.cells.push_back({share, format("{}, expert {}: {:.2f} x the mean", name, e, share)});
      }
    }
    map_of_choices = svg::heat_map(map);
  }
  return "<h2>Experts</h2>" + svg::line_chart(load) + svg::line_chart(idle) + svg::line_chart(entropy) + map_of_choices;
}

std::string time_line(const History& history) {
  svg::TimelineRow processes{"processes", {}, 2}, evaluations{"evaluations", {}, 0}, checkpoints{"checkpoints", {}, 5},
      warnings{"warnings", {}, 1};
  const auto at = [](int64_t step) { return static_cast<double>(step); };
  for (const int64_t step : history.starts)
    processes.marks.push_back({at(step), step == 0 ? "started" : format("resumed from step {}", step)});
  for (const EndReport& end : history.ends)
    processes.marks.push_back({at(end.step), format("{} at step {}", end.outcome, end.step)});
  for (const EvalReport& eval : history.evals)
    evaluations.marks.push_back({at(eval.step), format("step {}: validation loss {:.4f}{}", eval.step, eval.loss,
                                                       eval.set.empty() ? "" : " (" + eval.set + ")")});
  for (const CheckpointReport& saved : history.checkpoints)
    checkpoints.marks.push_back(
        {at(saved.step), format("step {}: {} in {:.2f} s{}", saved.step, page::bytes_text(saved.bytes), saved.seconds,
                                saved.best ? ", the best so far" : "")});
  for (const WarningReport& warning : history.warnings) warnings.marks.push_back({at(warning.step), warning.message});
  const int64_t first = history.starts.empty() ? 0 : std::ranges::min(history.starts);
  const int64_t last = history.steps.empty() ? first : history.steps.back().step;
  if (history.steps.empty()) return "";
  return svg::time_line("events", "Timeline", "step", at(first), at(last),
                        {processes, evaluations, checkpoints, warnings});
}

}  // namespace trainer::report
