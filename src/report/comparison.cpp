#include "report/comparison.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "base/units.h"
#include "report/html.h"
#include "report/page.h"
#include "report/svg.h"

namespace trainer::report {
namespace {

constexpr size_t kMaxPoints = 600;
constexpr size_t kSmoothFrom = 50;  // steps: a shorter curve is not smoothed

void flatten(const toml::node& node, const std::string& name, std::map<std::string, std::string>& values) {
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, value] : *table)
      flatten(value, (name.empty() ? "" : name + ".") + std::string(key.str()), values);
    return;
  }
  if (const auto number = node.value_exact<double>()) {
    values[name] = format("{}", *number);  // toml++ prints 0.003 as 0.0030000000000000001
    return;
  }
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  values[name] = text.str();
}

std::map<std::string, std::string> config_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> values;
  try {
    flatten(toml::parse_file((folder / "config.toml").string()), "", values);
  } catch (const toml::parse_error&) {  // none there, or damaged: the run has no values to compare
    values.clear();
  }
  return values;
}

// --- curves ----------------------------------------------------------------------------------------------------------

/// Where a curve's points lie along x, and what y is.
using X = double (*)(const StepReport&);
double by_step(const StepReport& step) { return static_cast<double>(step.step); }
double by_tokens(const StepReport& step) { return static_cast<double>(step.tokens); }

svg::Series curve(const ComparedRun& run, size_t colour, X x, double StepReport::*y) {
  svg::Series series{run.name, {}, static_cast<int>(colour), svg::Series::Style::line};
  for (const StepReport& step : run.history.steps) series.points.push_back({x(step), step.*y});
  if (series.points.size() >= kSmoothFrom)
    series.points = svg::smooth(series.points, std::max<size_t>(5, series.points.size() / 25));
  series.points = svg::downsample(series.points, kMaxPoints);
  return series;
}

std::string curves(const std::vector<ComparedRun>& runs, svg::LineChart chart, X x, double StepReport::*y) {
  chart.legend = false;
  for (size_t i = 0; i < runs.size(); ++i) chart.series.push_back(curve(runs[i], i, x, y));
  return svg::line_chart(chart);
}

std::string validation(const std::vector<ComparedRun>& runs) {
  svg::LineChart chart{.id = "validation",
                       .title = "Validation loss",
                       .x_name = "step",
                       .y_name = "nats per token",
                       .width = 1000,
                       .height = 320,
                       .legend = false};
  bool any = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    svg::Series series{runs[i].name, {}, static_cast<int>(i), svg::Series::Style::dotted};
    for (const EvalReport& eval : runs[i].history.evals)
      series.points.push_back({static_cast<double>(eval.step), eval.loss});
    any |= !series.points.empty();
    series.points = svg::downsample(series.points, kMaxPoints);
    chart.series.push_back(std::move(series));
  }
  return any ? svg::line_chart(chart) : "";
}

/// Loss over tokens says more than loss over steps where the steps have different sizes.
bool have_steps_of_one_size(const std::vector<ComparedRun>& runs) {
  return std::ranges::all_of(runs, [&](const ComparedRun& run) {
    const StartReport &mine = run.summary.start, &first = runs.front().summary.start;
    return mine.global_batch * mine.seq_len == first.global_batch * first.seq_len;
  });
}

// --- tables ----------------------------------------------------------------------------------------------------------

std::string number(double value, int digits = 4) { return std::isfinite(value) ? format_number(value, digits) : "-"; }
std::string count(double value) { return std::isfinite(value) && value > 0 ? format_count(value) : "-"; }
std::string bytes(int64_t value) { return value > 0 ? format_bytes(value) : "-"; }
std::string percent(double share) { return std::isfinite(share) ? format_percent(share) : "-"; }

/// A fact of a run: its value for people, and as a number where its ratio to the first run's says something.
struct Fact {
  std::string text;
  double ratio_of = kUnknown;
};
struct FactRow {
  const char* name;
  Fact (*of)(const ComparedRun& run);
};

double eval_loss(const std::optional<EvalReport>& eval) { return eval ? eval->loss : kUnknown; }

constexpr FactRow kFacts[] = {
    {"outcome", [](const ComparedRun& r) { return Fact{r.summary.outcome}; }},
    {"steps", [](const ComparedRun& r) { return Fact{format("{}", r.summary.step)}; }},
    {"tokens seen", [](const ComparedRun& r) { return Fact{count(static_cast<double>(r.summary.tokens))}; }},
    {"training loss", [](const ComparedRun& r) { return Fact{number(r.summary.last_loss, 5)}; }},
    {"validation loss", [](const ComparedRun& r) { return Fact{number(eval_loss(r.summary.last_eval), 5)}; }},
    {"best validation loss", [](const ComparedRun& r) { return Fact{number(eval_loss(r.summary.best_eval), 5)}; }},
    {"bits per byte",
     [](const ComparedRun& r) {
       return Fact{number(r.summary.last_eval ? r.summary.last_eval->bits_per_byte.value_or(kUnknown) : kUnknown, 5)};
     }},
    {"tokens per second",
     [](const ComparedRun& r) {
       return Fact{count(r.summary.tokens_per_s), r.summary.tokens_per_s};
     }},
    {"step, ms",
     [](const ComparedRun& r) {
       return Fact{number(r.summary.step_ms), r.summary.step_ms};
     }},
    {"step predicted, ms", [](const ComparedRun& r) { return Fact{number(r.summary.predicted_step_ms)}; }},
    {"TFLOP/s per device",
     [](const ComparedRun& r) {
       return Fact{number(r.summary.tflops_per_device), r.summary.tflops_per_device};
     }},
    {"mfu", [](const ComparedRun& r) { return Fact{percent(r.summary.mfu)}; }},
    {"waiting, ms a step", [](const ComparedRun& r) { return Fact{number(r.summary.phase_ms.comm_exposed, 3)}; }},
    {"waiting for updates, ms a step",
     [](const ComparedRun& r) {
       return Fact{number(r.summary.offload ? r.summary.offload->exposed_ms : kUnknown, 3)};
     }},
    {"wall time",
     [](const ComparedRun& r) {
       return Fact{std::isfinite(r.summary.wall_s) ? format_duration(r.summary.wall_s) : "-", r.summary.wall_s};
     }},
    {"memory measured",
     [](const ComparedRun& r) {
       const int64_t measured = r.summary.measured_memory;
       return Fact{bytes(measured), measured > 0 ? static_cast<double>(measured) : kUnknown};
     }},
    {"memory predicted", [](const ComparedRun& r) { return Fact{bytes(r.summary.predicted_memory)}; }},
    {"parameters", [](const ComparedRun& r) { return Fact{count(static_cast<double>(r.summary.start.parameters))}; }},
    {"compute type", [](const ComparedRun& r) { return Fact{r.summary.start.compute}; }},
    {"ranks × threads",
     [](const ComparedRun& r) {
       return Fact{format("{} × {}", r.summary.start.environment.ranks, r.summary.start.environment.threads)};
     }},
    {"device",
     [](const ComparedRun& r) {
       return Fact{r.summary.start.environment.device + " " + r.summary.start.environment.isa};
     }},
    {"version",
     [](const ComparedRun& r) {
       const Environment& env = r.summary.start.environment;
       return Fact{env.commit.empty() ? env.version : env.version + " " + env.commit};
     }},
    {"warnings", [](const ComparedRun& r) { return Fact{format("{}", r.history.warnings.size())}; }},
};

std::vector<std::string> names_of(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> names;
  for (const ComparedRun& run : runs) names.push_back(run.name);
  return names;
}

/// The facts of all runs; speed and memory of the later ones with their ratio to the first.
page::Grid facts(const std::vector<ComparedRun>& runs) {
  page::Grid grid{names_of(runs), {}};
  for (const FactRow& row : kFacts) {
    page::Grid::Row out{row.name, {}};
    const double first = row.of(runs.front()).ratio_of;
    for (const ComparedRun& run : runs) {
      const Fact fact = row.of(run);
      const double ratio = fact.ratio_of / first;
      out.cells.push_back(&run != &runs.front() && std::isfinite(ratio) && ratio > 0
                              ? format("{} ({:.3g}×)", fact.text, ratio)
                              : fact.text);
    }
    if (std::ranges::any_of(out.cells, [](const std::string& cell) { return cell != "-"; }))
      grid.rows.push_back(std::move(out));
  }
  return grid;
}

page::Grid differences(const std::vector<ComparedRun>& runs) {
  page::Grid grid{names_of(runs), {}};
  for (auto& [key, values] : differing_keys(runs)) grid.rows.push_back({key, std::move(values)});
  return grid;
}

/// Returns how many columns a text takes: continuation bytes of UTF-8 take none.
size_t columns(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string aligned(const page::Grid& grid) {
  std::vector<std::vector<std::string>> lines = {{""}};
  lines.front().insert(lines.front().end(), grid.head.begin(), grid.head.end());
  for (const page::Grid::Row& row : grid.rows) {
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
    compared.summary = summarize(compared.history, {});
    out.push_back(std::move(compared));
  }
  return out;
}

std::vector<std::pair<std::string, std::vector<std::string>>> differing_keys(const std::vector<ComparedRun>& runs) {
  std::set<std::string> keys;
  for (const ComparedRun& run : runs)
    for (const auto& [key, value] : run.config) keys.insert(key);
  std::vector<std::pair<std::string, std::vector<std::string>>> differing;
  for (const std::string& key : keys) {
    std::vector<std::string> values;
    for (const ComparedRun& run : runs) {
      const auto found = run.config.find(key);
      values.push_back(found == run.config.end() ? "-" : found->second);
    }
    if (std::ranges::any_of(values, [&](const std::string& value) { return value != values.front(); }))
      differing.emplace_back(key, std::move(values));
  }
  return differing;
}

std::string comparison_html(const std::vector<ComparedRun>& runs) {
  std::string title;
  for (const ComparedRun& run : runs) title += (title.empty() ? "" : " – ") + run.name;
  std::string html = page::begin(title, format("{} runs compared", runs.size()),
                                 "Curves are averaged over some steps; ratios are to the first run.");
  html += page::legend(names_of(runs));
  const svg::LineChart wide{.x_name = "step", .y_name = "nats per token", .width = 1000, .height = 360};
  svg::LineChart loss = wide, tokens = wide;
  loss.id = "loss";
  loss.title = "Training loss";
  tokens.id = "loss-tokens";
  tokens.title = "Training loss over the tokens seen";
  tokens.x_name = "tokens";
  html += page::section(curves(runs, loss, by_step, &StepReport::loss));
  if (!have_steps_of_one_size(runs)) html += page::section(curves(runs, tokens, by_tokens, &StepReport::loss));
  html += page::section(validation(runs));
  const auto half = [&](const char* id, const char* name, double StepReport::*y, bool from_zero) {
    const svg::LineChart chart{
        .id = id, .title = name, .x_name = "step", .width = 480, .height = 260, .from_zero = from_zero};
    return curves(runs, chart, by_step, y);
  };
  html += page::side_by_side({half("speed", "Tokens per second", &StepReport::tokens_per_s, true),
                              half("time", "Step, ms", &StepReport::step_ms, true),
                              half("norm", "Gradient norm, before clipping", &StepReport::grad_norm, true),
                              half("lr", "Learning rate", &StepReport::lr, true)});
  html += page::section("<h2>Results</h2>" + page::table(facts(runs)));
  const page::Grid keys = differences(runs);
  html +=
      page::section("<h2>Differences in configuration</h2>" + (keys.rows.empty() ? "<p>None.</p>" : page::table(keys)));
  return html + page::end("Every step is in the metrics.jsonl of each run.");
}

std::string comparison_text(const std::vector<ComparedRun>& runs) {
  const page::Grid keys = differences(runs);
  return aligned(facts(runs)) + (keys.rows.empty() ? "" : "\n" + aligned(keys));
}

}  // namespace trainer::report
