#include "report/html.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/units.h"
#include "report/events_json.h"
#include "report/page.h"
#include "report/run_sections.h"
#include "report/svg.h"

namespace trainer::report {
namespace {

using page::bytes_text;
using svg::escape;

std::string count_text(int64_t count) { return format_count(static_cast<double>(count)); }
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
    out += tile("Validation loss", loss_number(eval.loss),
                std::isfinite(entropy) ? format("unigram baseline {}", loss_number(entropy)) : "nats per token");
    out += tile("Perplexity", format_number(eval.perplexity),
                eval.bits_per_byte ? format("{:.3f} bits per byte", *eval.bits_per_byte) : "");
  }
  out += tile("Training loss", loss_number(summary.last_loss), format("from {}", loss_number(summary.first_loss)));
  out += tile("Throughput", format_count(summary.tokens_per_s), "tokens per second");
  if (std::isfinite(summary.mfu)) {
    const bool full = summary.mfu <= 1;  // with very long contexts, mfu exceeds 1; the table shows both
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

/// Adds a curve, and its moving average if the curve has enough points.
void add_smoothed(svg::LineChart& chart, const std::string& name, const std::vector<svg::Point>& points) {
  if (points.size() >= svg::kSmoothedFrom)
    chart.series.push_back({name + ", each step", points, 0, svg::Series::Style::faint});
  chart.series.push_back({name, svg::smooth(points)});
}

/// Returns the names of the validation sets in the order of the last evaluation; empty if the only set has no name.
std::vector<std::string> set_names(const History& history) {
  std::vector<std::string> names;
  if (!history.evals.empty())
    for (const SetReport& set : history.evals.back().sets) names.push_back(set.name);
  return names;
}

std::string loss_chart(const Summary& summary, const History& history) {
  svg::LineChart chart{
      .id = "loss", .title = "Loss", .x_name = "step", .y_name = "nats per token", .width = 1000, .height = 360};
  add_smoothed(chart, "training", curve(history, &StepReport::loss));
  const std::vector<std::string> names = set_names(history);
  int colour = 0;
  for (const std::string& name : names.empty() ? std::vector<std::string>{""} : names) {
    svg::Series validation{name.empty() ? "validation" : name, {}, 1 + colour++ % 7, svg::Series::Style::dotted};
    for (const EvalReport& eval : history.evals)
      validation.points.push_back(
          {static_cast<double>(eval.step), eval.loss_of(name).value_or(names.empty() ? eval.loss : kUnknown)});
    if (!validation.points.empty()) chart.series.push_back(std::move(validation));
  }
  if (std::isfinite(summary.start.unigram_entropy)) {
    chart.levels.push_back({summary.start.unigram_entropy, "unigram baseline"});
  }
  return svg::line_chart(std::move(chart));
}

svg::LineChart small_chart(const char* id, const char* title) {
  return {.id = id, .title = title, .x_name = "step", .width = 480, .height = 260, .from_zero = true};
}

std::string throughput_chart(const History& history) {
  svg::LineChart chart = small_chart("speed", "Tokens per second");
  add_smoothed(chart, "", curve(history, &StepReport::tokens_per_s));
  return svg::line_chart(std::move(chart));
}

std::string rate_chart(const History& history) {
  svg::LineChart chart = small_chart("lr", "Learning rate");
  chart.series.push_back({"", curve(history, &StepReport::lr), 2});
  return svg::line_chart(std::move(chart));
}

std::string norm_chart(const History& history) {
  svg::LineChart chart = small_chart("norm", "Gradient norm, before clipping");
  chart.series.push_back({"", curve(history, &StepReport::grad_norm), 3});
  svg::scale_for_spikes(chart);
  return svg::line_chart(std::move(chart));
}

std::string time_split(const Summary& summary) {
  const PhaseMs& phase = summary.phase_ms;
  const double named = phase.data + phase.forward + phase.backward + phase.optimizer;
  const auto part = [](const char* name, double ms, int colour) {
    return svg::Bar{name, std::max(0.0, ms), format("{:.2f} ms", std::max(0.0, ms)), colour};
  };
  const std::string waits = phase.comm_exposed > 0 ? format(", {} of it exposed communication",
                                                            format_percent(phase.comm_exposed / summary.mean_step_ms))
                                                   : "";
  return svg::stacked_bar(
      "time", "Time of a step" + waits,
      {part("forward", phase.forward, 0), part("backward", phase.backward, 1), part("optimizer", phase.optimizer, 2),
       part("data", phase.data, 3), part("other", summary.mean_step_ms - named, 7)});
}

std::string memory_bars(const Summary& summary) {
  std::vector<std::pair<std::string, int64_t>> sizes(summary.memory_by_category.begin(),
                                                     summary.memory_by_category.end());
  std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<svg::Bar> parts;
  for (const auto& [category, bytes] : sizes) {
    parts.push_back({category, static_cast<double>(bytes), bytes_text(bytes), 0});
  }
  return svg::bars("memory", "Peak memory by category", parts);
}

// --- tables and texts ------------------------------------------------------------------------------------------------

using page::table;
using Rows = page::Facts;

Rows model_rows(const StartReport& start) {
  const bool grouped = start.model.n_kv_head != start.model.n_head && start.model.n_kv_head > 0;
  return {{"family", start.arch},
          {"parameters", format("{} ({})", start.parameters, count_text(start.parameters))},
          {"layers × width", format("{} × {}{}", start.model.n_layer, start.model.d_model,
                                    start.model.d_ff > 0 ? format(" (feed-forward {})", start.model.d_ff) : "")},
          {"experts", experts_text(start)},
          {"heads", format("{}{}", start.model.n_head,
                           grouped ? format(" ({} for keys and values)", start.model.n_kv_head) : "")},
          {"sequence", format("{} tokens", start.model.seq_len)},
          {"vocabulary", format("{}", start.vocab_size)},
          {"compute type", start.compute},
          {"batch", format("{} sequences = {} per micro-step × {} accumulated × {}", start.global_batch,
                           start.micro_batch, start.accumulation, counted(start.data_replicas, "replica"))},
          {"data", format("{} training tokens, {} validation tokens", start.train_tokens, start.val_tokens)},
          {"FLOPs per token",
           format("{} full, {} causal, {} with recomputation; {}", format_count(start.flops.full()),
                  format_count(start.flops.causal()), format_count(start.flops.hardware()), config::kFlopsDefinition)}};
}

Rows result_rows(const Summary& summary, const History& history) {
  const auto known = [](bool is, const std::string& text) { return is ? text : ""; };
  const auto finite = [&](double value, const std::string& text) { return known(std::isfinite(value), text); };
  const EvalReport last = summary.last_eval.value_or(EvalReport()), best = summary.best_eval.value_or(EvalReport());
  const setup::PeakReport& peak = summary.peak;
  return {
      {"outcome", format("{} at step {} of {}", summary.outcome, summary.step, summary.start.total_steps)},
      {"started", summary.start.time},
      {"wall time", format_duration(summary.wall_s)},
      {"tokens seen", format("{}", summary.tokens)},
      {"training loss",
       format("{} → {} (mean of the last steps)", loss_number(summary.first_loss), loss_number(summary.last_loss))},
      {"validation loss", known(summary.last_eval.has_value(), format("{} at step {}, over {} tokens",
                                                                      loss_number(last.loss), last.step, last.tokens))},
      {"perplexity", format_number(last.perplexity, 5)},
      {"bits per byte", loss_number(last.bits_per_byte.value_or(kUnknown))},
      {"best validation loss", finite(best.loss, format("{} at step {}", loss_number(best.loss), best.step))},
      {"unigram baseline",
       finite(summary.start.unigram_entropy,
              loss_number(summary.start.unigram_entropy) + " (of the training text, with add-one smoothing)")},
      {"tokens per second",
       finite(summary.tokens_per_s, format("{:.0f} ({})", summary.tokens_per_s, median_text(summary)))},
      {"step", finite(summary.step_ms, format("{:.2f} ms ({})", summary.step_ms, median_text(summary)))},
      {"speed", finite(summary.tflops_per_device, format("{:.4g} TFLOP/s per device", summary.tflops_per_device))},
      {"utilisation", finite(summary.mfu, utilisation_text(summary))},
      {"update", update_text(summary)},
      {"peak", known(peak.windows > 0,
                     format("{:.3g} TFLOP/s; {} measured windows: median {:.3g}, lowest {:.3g}", peak.flops / 1e12,
                            peak.windows, peak.median_flops / 1e12, peak.lowest_flops / 1e12))},
      {"memory measured", bytes_text(summary.measured_memory)},
      {"memory predicted", bytes_text(summary.predicted_memory)},
      {"skipped steps", format("{}", summary.skipped_steps)},
      {"warnings", history.warnings.empty()
                       ? ""
                       : format("{}, the last: {}", history.warnings.size(), history.warnings.back().message)}};
}

/// Returns a table with the first, best and last loss of each validation set, from the evaluations that are comparable
/// with the last one; empty if the only set has no name.
std::string validation_sets(const History& history) {
  page::Table grid{.head = {"first", "best", "at step", "last", "bits per byte"}, .rows = {}};
  for (const std::string& name : set_names(history)) {
    double first = kUnknown, best = kUnknown;
    int64_t best_step = 0;
    const auto last = std::ranges::find(history.evals.back().sets, name, &SetReport::name);
    for (const EvalReport& eval : history.evals) {
      const auto set = std::ranges::find(eval.sets, name, &SetReport::name);
      if (set == eval.sets.end() || !are_comparable(*set, *last)) continue;
      if (std::isnan(first)) first = set->loss;
      if (!std::isfinite(set->loss) || set->loss >= best) continue;
      best = set->loss;
      best_step = eval.step;
    }
    grid.rows.push_back({.name = name,
                         .cells = {loss_number(first), loss_number(best), format("{}", best_step),
                                   loss_number(last->loss), loss_number(last->bits_per_byte.value_or(kUnknown))}});
  }
  return grid.rows.empty() ? "" : "<h2>Validation sets</h2>" + table(grid);
}

/// Returns the curves of the tasks' scores and a table of them; empty if there are none.
std::string tasks(const History& history) {
  if (history.tasks.empty()) return "";
  svg::LineChart chart{
      .id = "tasks", .title = "Tasks", .x_name = "step", .y_name = "score", .width = 1000, .height = 300};
  page::Table grid{.head = {"first", "best", "at step", "last", "± standard error", "questions", "centred"},
                   .rows = {}};
  int colour = 0;
  for (const TaskReport& last : history.tasks.back().tasks) {
    svg::Series series{last.name, {}, colour++ % 8};
    double first = kUnknown, best = kUnknown;
    int64_t best_step = 0;
    for (const TasksReport& report : history.tasks) {
      const TaskReport* const task = report.find(last.name);
      if (task == nullptr) continue;
      series.points.push_back({static_cast<double>(report.step), task->score});
      if (std::isnan(first)) first = task->score;
      if (task->score <= best) continue;
      best = task->score;
      best_step = report.step;
    }
    chart.series.push_back(std::move(series));
    grid.rows.push_back(
        {.name = last.name,
         .cells = {loss_number(first), loss_number(best), format("{}", best_step), loss_number(last.score),
                   loss_number(last.error()), format("{}", last.questions), loss_number(last.centred)}});
  }
  const double core = history.tasks.back().core;
  return svg::line_chart(std::move(chart)) + "<h2>Tasks</h2>" + table(grid) +
         (std::isfinite(core)
              ? format("<p>core, the mean of the tasks with metric core, centred: {}</p>", loss_number(core))
              : "");
}

Rows environment_rows(const Environment& env) {
  return {{"version", env.commit.empty() ? env.version : format("{} ({})", env.version, env.commit)},
          {"device", env.device},
          {"instruction set", env.isa},
          {"matmul", env.product_path},
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

/// Returns an evaluation as it appears in report.json, or null.
Json eval_json(const std::optional<EvalReport>& eval) {
  if (!eval) return nullptr;
  Json json = to_json(*eval);
  json.erase("event");
  return json;
}

}  // namespace

std::string report_html(const Summary& summary, const History& history, const std::string& config_toml) {
  const StartReport& start = summary.start;
  const std::string name = start.name.empty() ? "Training run" : start.name;
  std::string html =
      page::begin(name + " – training report", name,
                  format("{} model with {} parameters, {} at step {} of {}", start.arch.empty() ? "A" : start.arch,
                         count_text(start.parameters), summary.outcome, summary.step, start.total_steps));
  html += tiles(summary);
  html += page::section(loss_chart(summary, history));
  html += page::section(validation_sets(history));
  html += page::section(tasks(history));
  html += samples_section(summary.samples);
  html +=
      page::side_by_side({throughput_chart(history), norm_chart(history), rate_chart(history), time_split(summary)});
  html += page::section(time_line(history));
  html += page::section(prediction(summary));
  html += page::section(communication(summary, history));
  html += page::section(ranks(history));
  html += page::section(experts(history));
  html += page::section(optimizer_offload(history));
  html += page::section(memory_bars(summary));
  html += page::side_by_side(
      {"<h2>Result</h2>" + table(result_rows(summary, history)), "<h2>Model and data</h2>" + table(model_rows(start))});
  html += page::section("<h2>Environment</h2>" + table(environment_rows(start.environment)));
  if (!config_toml.empty())
    html += page::section("<details><summary>Effective configuration</summary><pre>" + escape(config_toml) +
                          "</pre></details>");
  return html +
         page::end(
             "metrics.jsonl contains every step, report.json the numbers on this page. `trainer report RUN --step N` "
             "prints the samples that step N trained on.");
}

std::string report_json(const Summary& summary, const History& history) {
  Json facts = to_json(summary.start);
  for (const char* key : {"event", "format", "step", "config", "peak", "source_samples"}) facts.erase(key);
  Json evals = Json::array(), samples = Json::array(), report;
  for (const EvalReport& eval : history.evals) evals.push_back(eval_json(eval));
  for (const Sample& sample : summary.samples) samples.push_back(to_json(sample));
  const Summary& s = summary;
  Writer write{report};
  write("outcome", s.outcome, "step", s.step, "tokens", s.tokens, "skipped_steps", s.skipped_steps);
  write("wall_s", s.wall_s, "first_loss", s.first_loss, "last_loss", s.last_loss);
  write("validation", eval_json(s.last_eval), "best_validation", eval_json(s.best_eval));
  write("unigram_entropy", s.start.unigram_entropy, "medians_from_step", s.medians_from, "step_ms", s.step_ms);
  write("predicted_step_ms", s.predicted_step_ms, "predicted_wait_ms", s.predicted_wait_ms);
  write("mean_step_ms", s.mean_step_ms > 0 ? s.mean_step_ms : kUnknown, "prediction", prediction_text(s),
        "tokens_per_s", s.tokens_per_s);
  write("tflops_per_device", s.tflops_per_device, "mfu", s.mfu, "mfu_causal", s.mfu_causal, "hfu", s.hfu);
  if (s.optimizer_flops > 0) write("optimizer_flops", s.optimizer_flops);
  if (std::isfinite(s.predicted_bubble)) write("bubble", s.bubble, "predicted_bubble", s.predicted_bubble);
  write("peak", s.peak, "phase_ms", s.phase_ms, "offload", s.offload ? to_json(*s.offload) : Json());
  write.bytes("measured_memory_bytes", s.measured_memory);
  write.bytes("predicted_memory_bytes", s.predicted_memory);
  write("memory_bytes", s.memory_by_category, "run", facts, "evals", evals, "samples", samples);
  return json_text(report, 2) + "\n";
}

void write_report(const std::filesystem::path& run_dir, const Summary& summary, const History& history) {
  std::string config = read_text(run_dir / "config.toml");
  if (config.empty()) config = summary.start.config_toml;
  replace_file(run_dir / "report.json", report_json(summary, history));
  replace_file(run_dir / "report.html", report_html(summary, history, config));
}

int64_t step_of_report(const std::filesystem::path& run_dir) {
  if (std::error_code none; !std::filesystem::exists(run_dir / "report.html", none)) return -1;
  const auto report = parse_json<Json>(read_text(run_dir / "report.json"));
  const auto step = report.is_object() ? report.find("step") : report.end();
  return step != report.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

std::vector<Sample> read_samples(const std::filesystem::path& run_dir, int64_t last_step) {
  std::vector<Sample> samples;
  const auto report = parse_json<Json>(read_text(run_dir / "report.json"));
  try {
    for (const Json& json : report.at("samples"))
      if (Sample sample = from_json<Sample>(json); sample.step <= last_step) samples.push_back(std::move(sample));
  } catch (const Json::exception&) {  // no report, or one of a different version: no samples
    samples.clear();
  }
  return samples;
}

Summary report_from(const std::filesystem::path& run_dir) {
  const std::filesystem::path log = run_dir / "metrics.jsonl";
  if (!std::filesystem::exists(log)) {
    throw Error(Code::io,
                format("{} not found; the report is generated from this file, which a run with log.jsonl = true writes",
                       log.string()));
  }
  const History history = read_history(log);
  warn_of_bad_lines(history, log);
  Summary summary = summarize(history, read_samples(run_dir, std::numeric_limits<int64_t>::max()));
  write_report(run_dir, summary, history);
  return summary;
}

}  // namespace trainer::report
