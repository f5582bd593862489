#include "report/summary.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/format.h"
#include "base/units.h"
#include "setup/peak.h"

namespace trainer::report {
namespace {

constexpr size_t kWarmUpSteps = 2;

double mean_of_last_losses(std::span<const StepReport> steps) {
  const size_t requested = std::clamp<size_t>(steps.size() / 10, 1, 10);
  double sum = 0;
  size_t count = 0;
  for (auto step = steps.rbegin(); step != steps.rend() && count < requested; ++step) {
    if (!std::isfinite(step->loss)) continue;
    sum += step->loss;
    ++count;
  }
  return count == 0 ? kUnknown : sum / static_cast<double>(count);
}

double mean_of_last_loads(std::span<const StepReport> steps) {
  double sum = 0, count = 0;
  for (auto step = steps.rbegin(); step != steps.rend() && count < 10; ++step) {
    if (!step->experts) continue;
    sum += step->experts->load_max;
    ++count;
  }
  return count == 0 ? kUnknown : sum / count;
}

/// Returns the mean over the steps whose time is known.
template <typename F>
double mean(std::span<const StepReport> steps, F value) {
  double sum = 0, count = 0;
  for (const StepReport& step : steps) {
    if (!std::isfinite(step.step_ms)) continue;
    count += 1;
    if (const double x = std::invoke(value, step); std::isfinite(x)) sum += x;
  }
  return count == 0 ? 0 : sum / count;
}

}  // namespace

Summary summarize(const History& history, std::vector<Sample> samples) {
  Summary summary;
  if (history.start) summary.start = *history.start;
  summary.peak = history.peak.flops > 0 ? history.peak : summary.start.peak;
  summary.samples = std::move(samples);
  summary.memory_by_category = history.memory_bytes;
  summary.predicted_memory = summary.start.predicted.memory_bytes;
  summary.predicted_step_ms = summary.start.predicted.step_ms;
  summary.predicted_wait_ms = summary.start.predicted.wait_ms;
  summary.predicted_bubble = summary.start.predicted.bubble;
  summary.step = summary.start.step;

  const std::span<const StepReport> steps = history.steps;
  if (!steps.empty()) {
    summary.step = steps.back().step;
    summary.tokens = steps.back().tokens;
    summary.epoch = steps.back().epoch;
    summary.first_loss = steps.front().loss;
    summary.last_loss = mean_of_last_losses(steps);
    summary.expert_load = mean_of_last_loads(steps);
    summary.skipped_steps = std::ranges::count(steps, true, &StepReport::skipped);
    summary.setup_changed = history.setup_from > 0;
    const auto alike = history.last_setup();
    summary.medians_from = alike.empty() ? 0 : alike.front().step;
    summary.warm_up_counts = alike.size() <= 2 * kWarmUpSteps;
    const auto warm = alike.subspan(summary.warm_up_counts ? 0 : kWarmUpSteps);
    summary.step_ms = median_of(warm, &StepReport::step_ms);
    summary.tokens_per_s = median_of(warm, &StepReport::tokens_per_s);
    summary.tflops_per_device = median_of(warm, &StepReport::tflops_per_device);
    summary.mfu = median_of(warm, &StepReport::mfu);
    summary.mfu_causal = median_of(warm, &StepReport::mfu_causal);
    summary.hfu = median_of(warm, &StepReport::hfu);
    summary.bubble = median_of(warm, &StepReport::bubble);
    summary.mean_step_ms = mean(warm, &StepReport::step_ms);
    for (double PhaseMs::*phase :
         {&PhaseMs::data, &PhaseMs::forward, &PhaseMs::backward, &PhaseMs::optimizer, &PhaseMs::comm_exposed})
      summary.phase_ms.*phase = mean(warm, [&](const StepReport& step) { return step.phase_ms.*phase; });
    for (const StepReport& step : warm)
      summary.optimizer_flops = std::max(summary.optimizer_flops, step.optimizer_flops);
    summary.offload = steps.back().offload;
    if (summary.offload)
      summary.offload->exposed_ms =
          median_of(warm, [](const StepReport& step) { return step.offload ? step.offload->exposed_ms : kUnknown; });
  }

  for (const EvalReport& eval : history.evals) {
    if (!are_comparable(eval, history.evals.back()) || eval.set != history.evals.back().set) continue;
    if (std::isfinite(eval.loss) && (!summary.best_eval || eval.loss < summary.best_eval->loss))
      summary.best_eval = eval;
  }
  if (!history.evals.empty()) summary.last_eval = history.evals.back();

  summary.outcome = "did not end normally";
  if (!history.ends.empty()) {
    const EndReport& last = history.ends.back();
    if (last.step >= summary.step) summary.outcome = last.outcome;
    summary.measured_memory = last.measured.memory_bytes;
    if (last.predicted.memory_bytes > 0) summary.predicted_memory = last.predicted.memory_bytes;
    summary.wall_s = 0;
    for (const EndReport& end : history.ends) {
      if (std::isfinite(end.wall_s)) summary.wall_s += end.wall_s;
    }
  }
  return summary;
}

std::string median_text(const Summary& summary) {
  if (!summary.setup_changed) return "median";
  return format("median since step {}, when the setup changed", summary.medians_from);
}

std::string utilisation_text(const Summary& summary) {
  std::string text = format("mfu {}, causal {}, hardware {} of {}", format_percent(summary.mfu),
                            format_percent(summary.mfu_causal), format_percent(summary.hfu), to_string(summary.peak));
  if (std::fmax(summary.mfu_causal, summary.hfu) > 1) {
    text += "; more than 100 %, so that peak is too low";
  } else if (summary.mfu > 1) {
    text += "; mfu counts full attention, of which a causal model computes half";
  }
  return text;
}

std::string update_text(const Summary& summary) {
  if (summary.optimizer_flops <= 0) return "";
  const StartReport& start = summary.start;
  const double model = start.flops.full() * static_cast<double>(start.global_batch * start.model.seq_len) /
                       std::max(1, start.environment.ranks);
  return format("{:.4g} ms/step ({}); {} FLOPs in GEMMs per rank, {:.3g} times the model's", summary.phase_ms.optimizer,
                format_percent(summary.phase_ms.optimizer / summary.mean_step_ms),
                format_count(summary.optimizer_flops), summary.optimizer_flops / model);
}

std::string offload_text(const OffloadReport& offload) {
  const double all = static_cast<double>(std::max<int64_t>(1, offload.host + offload.streamed + offload.resident));
  const auto part = [&](int64_t count) { return format_percent(static_cast<double>(count) / all); };
  std::string text = format("{} updated on the host, {} streamed, {} resident; {:.2f} ms/step exposed (median)",
                            part(offload.host), part(offload.streamed), part(offload.resident), offload.exposed_ms);
  const bool emulated = std::isfinite(offload.emulated_ms);
  if (const double update = emulated ? offload.emulated_ms : offload.update_ms; std::isfinite(update))
    text += format("; an update takes {:.3g} ms{}{}", update, emulated ? " on the emulated device's clock" : "",
                   std::isfinite(offload.predicted_ms) ? format(", {:.3g} ms predicted", offload.predicted_ms) : "");
  if (std::isfinite(offload.overlapped)) text += format("; {} of it overlapped", format_percent(offload.overlapped));
  return text;
}

std::vector<PredictedPart> predicted_parts(const Summary& summary) {
  const double waits = summary.predicted_wait_ms;
  if (!(summary.predicted_step_ms > 0 && summary.mean_step_ms > 0) || !std::isfinite(waits)) return {};
  // Batches are prefetched, so no wait for data is predicted.
  const PhaseMs& phase = summary.phase_ms;
  return {{"compute", summary.predicted_step_ms - waits, summary.mean_step_ms - phase.comm_exposed - phase.data},
          {"exposed communication", waits, phase.comm_exposed},
          {"waiting for data", 0, phase.data}};
}

std::string prediction_text(const Summary& summary) {
  const double predicted = summary.predicted_step_ms, measured = summary.mean_step_ms;
  if (!(predicted > 0 && measured > 0)) return "";
  std::string text = format("{:.4g} ms/step, measured {:.4g} ({:.2f}x)", predicted, measured, measured / predicted);
  if (const std::vector<PredictedPart> parts = predicted_parts(summary); !parts.empty()) {
    const PredictedPart& worst =
        *std::ranges::max_element(parts, {}, [](const PredictedPart& p) { return std::abs(p.measured - p.predicted); });
    text += format("; largest difference: {}, {:.4g} ms predicted, {:.4g} measured", worst.name, worst.predicted,
                   worst.measured);
  }
  if (!summary.start.predicted_by.empty())
    text += format("; predicted from {}; ran on {}", summary.start.predicted_by, summary.start.environment.isa);
  return text;
}

std::vector<std::string> summary_lines(const Summary& summary, const std::filesystem::path& run_dir) {
  std::vector<std::string> lines;
  const auto add = [&lines](const char* label, const std::string& text) {
    lines.push_back(format("{:<11} {}", label, text));
  };
  std::string run = format("{} at step {}", summary.outcome, summary.step);
  if (summary.start.total_steps > 0) run += format(" of {}", summary.start.total_steps);
  run += format(", {} tokens", format_count(summary.tokens));
  if (std::isfinite(summary.epoch)) run += format(", {:.2f} epochs", summary.epoch);
  if (std::isfinite(summary.wall_s)) run += " in " + format_duration(summary.wall_s);
  add("run", run);

  if (std::isfinite(summary.last_loss))
    add("train loss", format("{:.4f} -> {:.4f}", summary.first_loss, summary.last_loss));
  if (summary.skipped_steps > 0)
    add("skipped",
        format("{}, whose loss or gradients were not finite or a spike", counted(summary.skipped_steps, "step")));
  if (summary.last_eval) {
    const EvalReport& eval = *summary.last_eval;
    std::string text = format("{:.4f}", eval.loss);
    if (std::isfinite(summary.start.unigram_entropy))
      text += format(" (unigram baseline: {:.4f})", summary.start.unigram_entropy);
    text += format(", perplexity {}", format_number(eval.perplexity));
    if (eval.bits_per_byte) text += format(", {:.3f} bits per byte", *eval.bits_per_byte);
    const int64_t all = summary.start.val_tokens, incomplete_window = summary.start.model.seq_len;
    if (eval.sets.empty() && eval.tokens > 0 && eval.tokens + incomplete_window < all)
      text += format("; covers the first {} of {} tokens (train.eval_batches), `trainer eval` covers all",
                     format_count(static_cast<double>(eval.tokens)), format_count(static_cast<double>(all)));
    add("val loss", text);
    if (summary.best_eval && summary.best_eval->step != eval.step) {
      const int64_t step = summary.best_eval->step;
      const bool saved = std::filesystem::exists(run_dir / "checkpoints" / format("step-{:08}", step));
      add("best",
          format("{:.4f} at step {}{}", summary.best_eval->loss, step, saved ? "" : ", which has no checkpoint"));
    }
  }
  if (std::isfinite(summary.tokens_per_s)) {
    std::string text =
        format("{} tokens/s, {:.1f} ms/step (medians)", format_count(summary.tokens_per_s), summary.step_ms);
    if (summary.setup_changed) text += format(" since step {}, when the setup changed", summary.medians_from);
    if (std::isfinite(summary.tflops_per_device))
      text += format(", {:.3g} TFLOP/s per rank", summary.tflops_per_device);
    if (summary.warm_up_counts) text += "; too few steps to leave out the first two, which are slower";
    add("speed", text);
    if (const std::string prediction = prediction_text(summary); !prediction.empty()) add("prediction", prediction);
  }
  if (std::isfinite(summary.mfu)) {
    add("utilisation", utilisation_text(summary));
  }
  if (std::isfinite(summary.bubble))
    add("bubble", format("{}, {} predicted", format_percent(summary.bubble), format_percent(summary.predicted_bubble)));
  if (std::isfinite(summary.expert_load))
    add("experts",
        format("load {:.2f}, of the busiest expert over the mean, in the last steps logged", summary.expert_load));
  if (const std::string update = update_text(summary); !update.empty()) add("update", update);
  if (summary.offload) add("offload", offload_text(*summary.offload));
  if (summary.measured_memory > 0) {
    const auto measured = static_cast<double>(summary.measured_memory);
    std::string text = format_bytes(measured) + " measured";
    if (summary.predicted_memory > 0) {
      const auto predicted = static_cast<double>(summary.predicted_memory);
      text += format(", {} predicted ({:.2f}x)", format_bytes(predicted), measured / predicted);
    }
    add("memory", text);
  }
  for (const char* file : {"report.html", "metrics.jsonl", "checkpoints"}) {
    if (std::filesystem::exists(run_dir / file)) add("see", (run_dir / file).string());
  }
  if (summary.outcome == "finished" && std::filesystem::exists(run_dir / "checkpoints")) {
    const bool tokenizer =
        std::filesystem::exists(run_dir / "tokenizer.model") || std::filesystem::exists(run_dir / "tokenizer.json");
    if (tokenizer)
      add("next", format("trainer generate --checkpoint {} {}", run_dir.string(),
                         summary.chats ? "--chat" : "--prompt \"Once upon a time\""));
    if (summary.last_eval) add(tokenizer ? "" : "next", format("trainer eval --checkpoint {}", run_dir.string()));
  }
  return lines;
}

}  // namespace trainer::report
