#include "report/html.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "base/units.h"
#include "report/events_json.h"
#include "report/page.h"
#include "report/run_sections.h"
#include "report/svg.h"

namespace trainer::report {
namespace {

using svg::escape;

constexpr size_t kChartPoints = 1000;
constexpr size_t kSmoothedFrom = 50;  // steps: a shorter curve is not smoothed

std::string bytes_text(int64_t bytes) { return format_bytes(bytes); }
std::string count_text(int64_t count) { return format_count(count); }
std::string loss_number(double loss) { return std::isfinite(loss) ? format("{:.4f}", loss) : "-"; }

// --- key figures ---------------------------------------------------------------------------------------------------

std::string tile(const std::string& name, const std::string& value, const std::string& note) {
  return format("<div class=\"tile\"><dt>{}</dt><dd>{}<small>{}</small></dd></div>", escape(name), escape(value),
                escape(note));
}

std::string tiles(const Summary& summary) {
  std::string out = "<dl class=\"tiles\">";
  if (summary.last_eval) {
    const EvalReport& eval = *summary.last_eval;
    const double entropy = summary.start.unigram_entropy;
    out +=
        tile("Validation loss", loss_number(eval.loss),
             std::isfinite(entropy) ? format("{} by token frequencies alone", loss_number(entropy)) : "nats per token");
    out += tile("Perplexity", format_number(eval.perplexity),
                eval.bits_per_byte ? format("{:.3f} bits per byte", *eval.bits_per_byte) : "");
  }
  out += tile("Training loss", loss_number(summary.last_loss), format("from {}", loss_number(summary.first_loss)));
  out += tile("Throughput", format_count(summary.tokens_per_s), "tokens per second");
  if (std::isfinite(summary.mfu)) {
    const bool full = summary.mfu <= 1;  // it exceeds 1 at very long contexts: the table has both
    out += tile(full ? "Utilisation" : "Utilisation, causal", format_percent(full ? summary.mfu : summary.mfu_causal),
                format("of {:.3g} TFLOP/s, {}", summary.peak.flops / 1e12, summary.peak.origin));
  }
  if (summary.measured_memory > 0) {
    out += tile("Memory", bytes_text(summary.measured_memory),
                summary.predicted_memory > 0 ? bytes_text(summary.predicted_memory) + " predicted" : "measured");
  }
  out += tile("Tokens seen", count_text(summary.tokens),
              format("{} steps{}", summary.step,
                     std::isfinite(summary.wall_s) ? " in " + format_duration(summary.wall_s) : std::string()));
  return out + "</dl>\n";
}

// --- charts ----------------------------------------------------------------------------------------------------------

std::vector<svg::Point> curve(const History& history, double StepReport::*member) {
  std::vector<svg::Point> points;
  points.reserve(history.steps.size());
  for (const StepReport& step : history.steps) points.push_back({static_cast<double>(step.step), step.*member});
  return points;
}

/// Adds the curve itself, and its average over it when the curve is long enough.
void add_smoothed(svg::LineChart& chart, const std::string& name, const std::vector<svg::Point>& points) {
  if (points.size() < kSmoothedFrom) {
    chart.series.push_back({name, svg::downsample(points, kChartPoints), 0, svg::Series::Style::line});
    return;
  }
  chart.series.push_back({name + ", each step", svg::downsample(points, kChartPoints), 0, svg::Series::Style::faint});
  const size_t window = std::max<size_t>(5, points.size() / 25);
  chart.series.push_back(
      {name, svg::downsample(svg::smooth(points, window), kChartPoints), 0, svg::Series::Style::line});
}

std::string loss_chart(const Summary& summary, const History& history) {
  svg::LineChart chart{
      .id = "loss", .title = "Loss", .x_name = "step", .y_name = "nats per token", .width = 1000, .height = 360};
  add_smoothed(chart, "training", curve(history, &StepReport::loss));
  svg::Series validation{"validation", {}, 1, svg::Series::Style::dotted};
  for (const EvalReport& eval : history.evals) validation.points.push_back({static_cast<double>(eval.step), eval.loss});
  validation.points = svg::downsample(validation.points, kChartPoints);
  if (!validation.points.empty()) chart.series.push_back(std::move(validation));
  if (std::isfinite(summary.start.unigram_entropy)) {
    chart.levels.push_back({summary.start.unigram_entropy, "loss of token frequencies alone"});
  }
  return svg::line_chart(chart);
}

std::string throughput_chart(const History& history) {
  svg::LineChart chart{
      .id = "speed", .title = "Tokens per second", .x_name = "step", .width = 480, .height = 260, .from_zero = true};
  add_smoothed(chart, "", curve(history, &StepReport::tokens_per_s));
  return svg::line_chart(chart);
}

std::string rate_chart(const History& history) {
  svg::LineChart chart{
      .id = "lr", .title = "Learning rate", .x_name = "step", .width = 480, .height = 260, .from_zero = true};
  chart.series.push_back(
      {"", svg::downsample(curve(history, &StepReport::lr), kChartPoints), 2, svg::Series::Style::line});
  return svg::line_chart(chart);
}

std::string norm_chart(const History& history) {
  svg::LineChart chart{
      .id = "norm", .title = "Gradient norm, before clipping", .x_name = "step", .width = 480, .height = 260};
  const std::vector<svg::Point> points = curve(history, &StepReport::grad_norm);
  std::vector<double> values;
  for (const svg::Point& point : points) {
    if (std::isfinite(point.y)) values.push_back(point.y);
  }
  std::sort(values.begin(), values.end());
  // A logarithmic axis keeps one spike from flattening everything else.
  chart.logarithmic =
      !values.empty() && values[values.size() / 2] > 0 && values.back() > 20 * values[values.size() / 2];
  chart.from_zero = !chart.logarithmic;
  chart.series.push_back({"", svg::downsample(points, kChartPoints), 3, svg::Series::Style::line});
  return svg::line_chart(chart);
}

std::string time_split(const Summary& summary) {
  const measure::PhaseMs& phase = summary.phase_ms;
  const double named = phase.data + phase.forward + phase.backward + phase.optimizer;
  const std::vector<std::pair<const char*, double>> times = {{"forward", phase.forward},
                                                             {"backward", phase.backward},
                                                             {"optimizer", phase.optimizer},
                                                             {"data", phase.data},
                                                             {"other", summary.mean_step_ms - named}};
  std::vector<svg::Part> parts;
  for (const auto& [name, ms] : times) {
    const int colour = std::string_view(name) == "other" ? 7 : static_cast<int>(parts.size());
    parts.push_back({name, std::max(0.0, ms), format("{:.2f} ms", std::max(0.0, ms)), colour});
  }
  const std::string waits = phase.comm_exposed > 0 ? format(", {} of it waits for communication",
                                                            format_percent(phase.comm_exposed / summary.mean_step_ms))
                                                   : "";
  return svg::stacked_bar("time", format("Time of a step{}", waits), parts);
}

std::string memory_bars(const Summary& summary) {
  std::vector<std::pair<std::string, int64_t>> sizes(summary.memory_by_category.begin(),
                                                     summary.memory_by_category.end());
  std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<svg::Part> parts;
  for (const auto& [category, bytes] : sizes) {
    parts.push_back({category, static_cast<double>(bytes), bytes_text(bytes), 0});
  }
  return svg::bars("memory", "Peak memory by category", parts);
}

// --- tables and texts ------------------------------------------------------------------------------------------------

using page::table;
using Rows = page::Facts;

Rows model_rows(const StartReport& start) {
  Rows rows = {{"family", start.arch}};
  rows.emplace_back("parameters", format("{} ({})", start.parameters, count_text(start.parameters)));
  rows.emplace_back("layers × width", format("{} × {} (feed-forward {})", start.n_layer, start.d_model, start.d_ff));
  std::string heads = format("{}", start.n_head);
  if (start.n_kv_head != start.n_head && start.n_kv_head > 0)
    heads += format(" ({} for keys and values)", start.n_kv_head);
  rows.emplace_back("heads", heads);
  rows.emplace_back("sequence", format("{} tokens", start.seq_len));
  rows.emplace_back("vocabulary", format("{}", start.vocab_size));
  rows.emplace_back("compute type", start.compute);
  rows.emplace_back("batch", format("{} sequences = {} per micro-step × {} accumulated × {} replicas",
                                    start.global_batch, start.micro_batch, start.accumulation, start.data_replicas));
  rows.emplace_back("data", format("{} training tokens, {} validation tokens", start.train_tokens, start.val_tokens));
  rows.emplace_back("FLOPs per token", format("{} full, {} causal, {} with recomputation; {}",
                                              format_count(start.flops.full()), format_count(start.flops.causal()),
                                              format_count(start.flops.hardware()), measure::kFlopsDefinition));
  return rows;
}

Rows result_rows(const Summary& summary, const History& history) {
  Rows rows = {{"outcome", format("{} at step {} of {}", summary.outcome, summary.step, summary.start.total_steps)},
               {"started", summary.start.time}};
  if (std::isfinite(summary.wall_s)) rows.emplace_back("wall time", format_duration(summary.wall_s));
  rows.emplace_back("tokens seen", format("{}", summary.tokens));
  rows.emplace_back("training loss", format("{} → {} (mean of the last steps)", loss_number(summary.first_loss),
                                            loss_number(summary.last_loss)));
  if (summary.last_eval) {
    const EvalReport& eval = *summary.last_eval;
    rows.emplace_back("validation loss",
                      format("{} at step {}, over {} tokens", loss_number(eval.loss), eval.step, eval.tokens));
    rows.emplace_back("perplexity", format_number(eval.perplexity, 5));
    if (eval.bits_per_byte) rows.emplace_back("bits per byte", format("{:.4f}", *eval.bits_per_byte));
  }
  if (summary.best_eval) {
    rows.emplace_back("best validation loss",
                      format("{} at step {}", loss_number(summary.best_eval->loss), summary.best_eval->step));
  }
  if (std::isfinite(summary.start.unigram_entropy)) {
    rows.emplace_back("loss of token frequencies alone", loss_number(summary.start.unigram_entropy) +
                                                             " (of the training text, with one added to each count)");
  }
  if (std::isfinite(summary.tokens_per_s))
    rows.emplace_back("tokens per second", format("{:.0f} ({})", summary.tokens_per_s, median_text(summary)));
  if (std::isfinite(summary.step_ms))
    rows.emplace_back("step", format("{:.2f} ms ({})", summary.step_ms, median_text(summary)));
  if (std::isfinite(summary.tflops_per_device))
    rows.emplace_back("speed", format("{:.4g} TFLOP/s per device", summary.tflops_per_device));
  if (std::isfinite(summary.mfu)) rows.emplace_back("utilisation", utilisation_text(summary));
  if (summary.peak.windows > 0)
    rows.emplace_back("peak", format("{:.3g} TFLOP/s; the {} windows it was measured in: median {:.3g}, lowest {:.3g}",
                                     summary.peak.flops / 1e12, summary.peak.windows, summary.peak.median_flops / 1e12,
                                     summary.peak.lowest_flops / 1e12));
  if (summary.measured_memory > 0) rows.emplace_back("memory measured", bytes_text(summary.measured_memory));
  if (summary.predicted_memory > 0) rows.emplace_back("memory predicted", bytes_text(summary.predicted_memory));
  rows.emplace_back("skipped steps", format("{}", summary.skipped_steps));
  if (!history.warnings.empty())
    rows.emplace_back("warnings", format("{}, the last: {}", history.warnings.size(), history.warnings.back().message));
  return rows;
}

Rows environment_rows(const Environment& env) {
  return {{"version", env.commit.empty() ? env.version : format("{} ({})", env.version, env.commit)},
          {"device", env.device},
          {"instruction set", env.isa},
          {"matrix products", env.product_path},
          {"ranks × threads", format("{} × {}", env.ranks, env.threads)}};
}

std::string samples_section(const std::vector<Sample>& samples) {
  if (samples.empty()) return "";
  const auto one = [](const Sample& sample) {
    return format("<p class=\"at\">after step {}</p><blockquote><b>{}</b>{}</blockquote>", sample.step,
                  escape(sample.prompt), escape(sample.text));
  };
  std::string out = "<section><h2>Generated text</h2>" + one(samples.back());
  if (samples.size() > 1) {
    out += "<details><summary>Earlier in training</summary>";
    for (auto sample = samples.rbegin() + 1; sample != samples.rend(); ++sample) out += one(*sample);
    out += "</details>";
  }
  return out + "</section>\n";
}

// --- files ----------------------------------------------------------------------------------------------------------

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Json bytes_json(int64_t bytes) { return bytes > 0 ? Json(bytes) : Json(nullptr); }

}  // namespace

std::string report_html(const Summary& summary, const History& history, const std::string& config_toml) {
  const StartReport& start = summary.start;
  const std::string name = start.name.empty() ? "Training run" : start.name;
  std::string html =
      page::begin(name + " – training report", name,
                  format("{} model of {} parameters, {} at step {} of {}", start.arch.empty() ? "A" : start.arch,
                         count_text(start.parameters), summary.outcome, summary.step, start.total_steps));
  html += tiles(summary);
  html += page::section(loss_chart(summary, history));
  html += samples_section(summary.samples);
  html +=
      page::side_by_side({throughput_chart(history), norm_chart(history), rate_chart(history), time_split(summary)});
  html += page::section(time_line(history));
  html += page::section(prediction(summary));
  html += page::section(communication(history));
  html += page::section(optimizer_offload(history));
  html += page::section(memory_bars(summary));
  html += page::side_by_side(
      {"<h2>Result</h2>" + table(result_rows(summary, history)), "<h2>Model and data</h2>" + table(model_rows(start))});
  html += page::section("<h2>Environment</h2>" + table(environment_rows(start.environment)));
  if (!config_toml.empty())
    html += page::section("<details><summary>Configuration in force</summary><pre>" + escape(config_toml) +
                          "</pre></details>");
  return html + page::end("Every step is in metrics.jsonl, the numbers of this page in report.json.");
}

std::string report_json(const Summary& summary, const History& history) {
  Json facts = to_json(summary.start);
  for (const char* key : {"event", "step", "config", "peak"}) facts.erase(key);
  Json evals = Json::array(), samples = Json::array();
  for (const EvalReport& eval : history.evals) {
    evals.push_back(to_json(eval));
    evals.back().erase("event");
  }
  for (const Sample& sample : summary.samples) {
    samples.push_back({{"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}});
  }
  const auto eval_json = [](const std::optional<EvalReport>& eval) {
    if (!eval) return Json(nullptr);
    Json json = to_json(*eval);
    json.erase("event");
    return json;
  };
  const Json report = {{"outcome", summary.outcome},
                       {"step", summary.step},
                       {"tokens", summary.tokens},
                       {"skipped_steps", summary.skipped_steps},
                       {"wall_s", summary.wall_s},
                       {"first_loss", summary.first_loss},
                       {"last_loss", summary.last_loss},
                       {"validation", eval_json(summary.last_eval)},
                       {"best_validation", eval_json(summary.best_eval)},
                       {"unigram_entropy", summary.start.unigram_entropy},
                       {"medians_from_step", summary.medians_from},
                       {"step_ms", summary.step_ms},
                       {"predicted_step_ms", summary.predicted_step_ms},
                       {"tokens_per_s", summary.tokens_per_s},
                       {"tflops_per_device", summary.tflops_per_device},
                       {"mfu", summary.mfu},
                       {"mfu_causal", summary.mfu_causal},
                       {"hfu", summary.hfu},
                       {"peak", to_json(summary.peak)},
                       {"phase_ms", to_json(summary.phase_ms)},
                       {"offload", summary.offload ? to_json(*summary.offload) : Json(nullptr)},
                       {"measured_memory_bytes", bytes_json(summary.measured_memory)},
                       {"predicted_memory_bytes", bytes_json(summary.predicted_memory)},
                       {"memory_bytes", summary.memory_by_category},
                       {"run", facts},
                       {"evals", evals},
                       {"samples", samples}};
  return to_line(report, 2) + "\n";
}

void write_report(const std::filesystem::path& run_dir, const Summary& summary, const History& history) {
  std::string config = read_text(run_dir / "config.toml");
  if (config.empty()) config = summary.start.config_toml;
  replace_file(run_dir / "report.json", report_json(summary, history));
  replace_file(run_dir / "report.html", report_html(summary, history, config));
}

std::vector<Sample> read_samples(const std::filesystem::path& run_dir, int64_t last_step) {
  std::vector<Sample> samples;
  const Json report = Json::parse(read_text(run_dir / "report.json"), nullptr, /*allow_exceptions=*/false);
  try {
    for (const Json& json : report.at("samples")) {
      Sample sample{json.at("step").get<int64_t>(), json.at("prompt").get<std::string>(),
                    json.at("text").get<std::string>()};
      if (sample.step <= last_step) samples.push_back(std::move(sample));
    }
  } catch (const Json::exception&) {  // no report, or one of another version: no samples
    samples.clear();
  }
  return samples;
}

Summary report_from(const std::filesystem::path& run_dir) {
  const std::filesystem::path log = run_dir / "metrics.jsonl";
  if (!std::filesystem::exists(log)) {
    throw Error(Code::io,
                format("{} not found: the report is made from it (log.jsonl = true writes it)", log.string()));
  }
  const History history = read_history(log);
  Summary summary = summarize(history, read_samples(run_dir, std::numeric_limits<int64_t>::max()));
  write_report(run_dir, summary, history);
  return summary;
}

}  // namespace trainer::report
