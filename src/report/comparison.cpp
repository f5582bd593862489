#include "report/comparison.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>

#include "base/units.h"
#include "report/events_json.h"
#include "report/svg.h"

namespace trainer::report {
namespace {

/// Returns the effective configuration by key; empty if config.toml is missing or is not valid TOML.
std::map<std::string, std::string> config_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> values;
  std::ifstream in(folder / "config.toml");
  const Json config = config_json({std::istreambuf_iterator<char>(in), {}});
  if (config.is_object())
    flatten(config, "", '.', [&](const std::string& key, const Json& value) {
      values[key] = value.is_number_float() ? format("{:.12g}", value.get<double>()) : to_text(value);
    });
  return values;
}

// --- curves ----------------------------------------------------------------------------------------------------------

/// Plots one StepReport field for all runs, against steps or tokens seen.
std::string curves(const std::vector<ComparedRun>& runs, svg::LineChart chart, int64_t StepReport::*x,
                   double StepReport::*y) {
  for (size_t i = 0; i < runs.size(); ++i) {
    svg::Series series{runs[i].name, {}, static_cast<int>(i)};
    for (const StepReport& step : runs[i].history.steps)
      series.points.push_back({static_cast<double>(step.*x), step.*y});
    series.points = svg::smooth(series.points);
    chart.series.push_back(std::move(series));
  }
  svg::scale_for_spikes(chart);
  return svg::line_chart(std::move(chart));
}

std::string validation(const std::vector<ComparedRun>& runs, svg::LineChart chart) {
  bool any = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    svg::Series series{runs[i].name, {}, static_cast<int>(i), svg::Series::Style::dotted};
    for (const EvalReport& eval : runs[i].history.evals)
      series.points.push_back({static_cast<double>(eval.step), eval.loss});
    any |= !series.points.empty();
    chart.series.push_back(std::move(series));
  }
  return any ? svg::line_chart(std::move(chart)) : "";
}

/// True if a step has the same number of tokens in all runs. If not, loss over tokens is more meaningful than loss over
/// steps.
bool have_steps_of_one_size(const std::vector<ComparedRun>& runs) {
  return std::ranges::all_of(runs, [&](const ComparedRun& run) {
    const StartReport &mine = run.summary.start, &first = runs.front().summary.start;
    return mine.global_batch * mine.model.seq_len == first.global_batch * first.model.seq_len;
  });
}

// --- tables ----------------------------------------------------------------------------------------------------------

/// A fact about a run: its value as text, "-" if it is not known, and as a number if its ratio to the first run's value
/// is meaningful.
struct Fact {
  const char* name;
  std::string text;
  double ratio_of = kUnknown;
};

constexpr const char* kBestLoss = "best validation loss";

std::vector<Fact> facts_of(const ComparedRun& run) {
  const Summary& s = run.summary;
  const Environment& env = s.start.environment;
  const auto count = [](auto value) { return value > 0 ? format_count(static_cast<double>(value)) : "-"; };
  const EvalReport last = s.last_eval.value_or(EvalReport()), best = s.best_eval.value_or(EvalReport());
  const double memory = s.measured_memory > 0 ? static_cast<double>(s.measured_memory) : kUnknown;
  return {{"outcome", s.outcome},
          {"steps", format("{}", s.step)},
          {"tokens seen", count(s.tokens)},
          {"training loss", format_number(s.last_loss, 5)},
          {"validation loss", format_number(last.loss, 5)},
          {kBestLoss, format_number(best.loss, 5)},
          {"bits per byte", format_number(last.bits_per_byte.value_or(kUnknown), 5)},
          {"tokens per second", count(s.tokens_per_s), s.tokens_per_s},
          {"step, ms", format_number(s.step_ms), s.step_ms},
          {"step predicted, ms", format_number(s.predicted_step_ms)},
          {"TFLOP/s per device", format_number(s.tflops_per_device), s.tflops_per_device},
          {"mfu", format_percent(s.mfu)},
          {"update, ms/step", s.mean_step_ms > 0 ? format_number(s.phase_ms.optimizer, 3) : "-"},
          {"exposed communication, ms/step", format_number(s.phase_ms.comm_exposed, 3)},
          {"exposed updates, ms/step", format_number(s.offload ? s.offload->exposed_ms : kUnknown, 3)},
          {"wall time", format_duration(s.wall_s), s.wall_s},
          {"memory measured", page::bytes_text(s.measured_memory), memory},
          {"memory predicted", page::bytes_text(s.predicted_memory)},
          {"parameters", count(s.start.parameters)},
          {"compute type", s.start.compute},
          {"ranks × threads", format("{} × {}", env.ranks, env.threads)},
          {"device", env.device + " " + env.isa},
          {"version", env.commit.empty() ? env.version : env.version + " " + env.commit},
          {"warnings", format("{}", run.history.warnings.size())}};
}

std::vector<std::string> names_of(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> names;
  for (const ComparedRun& run : runs) names.push_back(run.name);
  return names;
}

/// Returns the runs that have a validation loss, by their lowest ones.
std::vector<std::pair<double, const ComparedRun*>> validated(const std::vector<ComparedRun>& runs) {
  std::vector<std::pair<double, const ComparedRun*>> losses;
  for (const ComparedRun& run : runs)
    if (const auto& best = run.summary.best_eval; best && std::isfinite(best->loss))
      losses.emplace_back(best->loss, &run);
  std::ranges::sort(losses);
  return losses;
}

/// Returns why the validation losses cannot be compared; empty if they can.
std::string differing_validation(const std::vector<ComparedRun>& runs) {
  const auto losses = validated(runs);
  for (const auto& [loss, run] : losses) {
    const ComparedRun& first = *losses.front().second;
    if (!are_comparable(*run->summary.best_eval, *first.summary.best_eval))
      return format("The validation losses of {} and {} are not comparable: their data or windows differ.", first.name,
                    run->name);
  }
  return "";
}

/// Returns the index of the run with the lowest validation loss; empty if fewer than two runs have a validation loss,
/// or the losses are not comparable.
std::optional<size_t> best_of(const std::vector<ComparedRun>& runs) {
  const auto losses = validated(runs);
  if (losses.size() < 2 || !differing_validation(runs).empty()) return std::nullopt;
  return static_cast<size_t>(losses.front().second - runs.data());
}

/// Returns the facts about all runs; speed and memory of later runs come with the ratio to the first run's, and the
/// best run's loss is marked.
page::Table facts(const std::vector<ComparedRun>& runs) {
  page::Table grid{names_of(runs), {}};
  const std::vector<Fact> first = facts_of(runs.front());
  for (const Fact& fact : first) grid.rows.push_back({fact.name, {}});
  for (const ComparedRun& run : runs) {
    const std::vector<Fact> mine = facts_of(run);
    for (size_t i = 0; i < mine.size(); ++i) {
      const double ratio = mine[i].ratio_of / first[i].ratio_of;
      const bool compared = &run != &runs.front() && std::isfinite(ratio) && ratio > 0;
      grid.rows[i].cells.push_back(compared ? format("{} ({:.3g}×)", mine[i].text, ratio) : mine[i].text);
    }
  }
  if (const auto best = best_of(runs))
    std::ranges::find(grid.rows, kBestLoss, &page::Table::Row::name)->cells[*best] += " (best)";
  std::erase_if(grid.rows, [](const page::Table::Row& row) {
    return std::ranges::all_of(row.cells, [](const std::string& cell) { return cell == "-"; });
  });
  return grid;
}

/// Returns links to the runs' reports; empty if there are none.
std::string links(const std::vector<ComparedRun>& runs, const std::filesystem::path& folder) {
  std::string html;
  for (const ComparedRun& run : runs) {
    if (run.report.empty()) continue;
    // The dot keeps a folder name with a colon from being taken for a scheme.
    const std::string target = "./" + std::filesystem::proximate(run.report, folder).generic_string();
    html += format("{}<a href=\"{}\">{}</a>", html.empty() ? "" : ", ", svg::escape(target), svg::escape(run.name));
  }
  return html.empty() ? "" : "<p>Reports: " + html + "</p>";
}

/// Returns the number of columns that a text takes. UTF-8 continuation bytes take none.
size_t columns(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string aligned(const page::Table& grid) {
  std::vector<std::vector<std::string>> lines = {{""}};
  lines.front().insert(lines.front().end(), grid.head.begin(), grid.head.end());
  for (const page::Table::Row& row : grid.rows) {
    lines.push_back({row.name});
    lines.back().insert(lines.back().end(), row.cells.begin(), row.cells.end());
  }
  std::vector<size_t> widths(grid.head.size() + 1);
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], columns(line[i]));
  std::string text;
  for (const auto& line : lines) {
    std::string out;
    for (size_t i = 0; i < line.size(); ++i) out += line[i] + std::string(widths[i] + 2 - columns(line[i]), ' ');
    text += out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

std::vector<ComparedRun> read_runs(const std::vector<NamedRun>& runs) {
  std::vector<ComparedRun> out;
  for (const NamedRun& run : runs) {
    ComparedRun compared{run.name, read_history(run.folder / "metrics.jsonl"), {}, config_of(run.folder)};
    warn_of_bad_lines(compared.history, run.folder / "metrics.jsonl");
    if (std::error_code error; std::filesystem::exists(run.folder / "report.html", error))
      compared.report = run.folder / "report.html";
    compared.summary = summarize(compared.history, {});
    out.push_back(std::move(compared));
  }
  return out;
}

page::Table differing_keys(const std::vector<ComparedRun>& runs) {
  std::map<std::string, std::vector<std::string>> all;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const auto& [key, value] : runs[i].config) all.try_emplace(key, runs.size(), "-").first->second[i] = value;
  page::Table grid{names_of(runs), {}};
  for (const auto& [key, values] : all)
    if (std::ranges::count(values, values.front()) < std::ssize(values)) grid.rows.push_back({key, values});
  return grid;
}

std::string comparison_html(const std::vector<ComparedRun>& runs, const std::filesystem::path& folder) {
  std::string title;
  for (const ComparedRun& run : runs) title += (title.empty() ? "" : " – ") + run.name;
  std::string html = page::begin(title, format("{} runs compared", runs.size()),
                                 "Curves are moving averages over steps; ratios are relative to the first run.");
  html += page::legend(names_of(runs));
  const auto chart = [](const char* id, const char* heading, bool wide = false, const char* x_name = "step") {
    return svg::LineChart{.id = id,
                          .title = heading,
                          .x_name = x_name,
                          .y_name = wide ? "nats per token" : "",
                          .width = wide ? 1000 : 480,
                          .height = wide ? 360 : 260,
                          .from_zero = !wide,
                          .legend = false};
  };
  const auto by_step = &StepReport::step, by_tokens = &StepReport::tokens;
  html += page::section(curves(runs, chart("loss", "Training loss", true), by_step, &StepReport::loss));
  if (!have_steps_of_one_size(runs))
    html += page::section(curves(runs, chart("loss-tokens", "Training loss over the tokens seen", true, "tokens"),
                                 by_tokens, &StepReport::loss));
  html += page::section(validation(runs, chart("validation", "Validation loss", true)));
  html += page::side_by_side(
      {curves(runs, chart("speed", "Tokens per second"), by_step, &StepReport::tokens_per_s),
       curves(runs, chart("time", "Step, ms"), by_step, &StepReport::step_ms),
       curves(runs, chart("norm", "Gradient norm, before clipping"), by_step, &StepReport::grad_norm),
       curves(runs, chart("lr", "Learning rate"), by_step, &StepReport::lr)});
  const std::string differing = differing_validation(runs);
  html += page::section("<h2>Results</h2>" + page::table(facts(runs)) +
                        (differing.empty() ? "" : "<p>" + svg::escape(differing) + "</p>") + links(runs, folder));
  const page::Table keys = differing_keys(runs);
  html +=
      page::section("<h2>Differences in configuration</h2>" + (keys.rows.empty() ? "<p>None.</p>" : page::table(keys)));
  return html + page::end("Each run's metrics.jsonl contains every step.");
}

std::string comparison_text(const std::vector<ComparedRun>& runs) {
  const page::Table keys = differing_keys(runs);
  const std::string differing = differing_validation(runs);
  return aligned(facts(runs)) + (differing.empty() ? "" : differing + "\n") +
         (keys.rows.empty() ? "" : "\n" + aligned(keys));
}

}  // namespace trainer::report
