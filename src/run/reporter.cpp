#include "run/reporter.h"

#include <algorithm>
#include <cmath>

#include "base/join.h"
#include "base/log.h"
#include "config/resolve.h"
#include "report/events_json.h"
#include "report/printable.h"
#include "report/summary.h"
#include "run/run_folder.h"
#include "run/start_report.h"

namespace trainer::run {
namespace {

std::filesystem::path metrics_file(const config::Config& config) {
  return std::filesystem::path(config.run.dir) / "metrics.jsonl";
}

/// True if the log has the step of the state, or a checkpoint of it if it does not record that step.
bool is_log_of(const report::History& history, const checkpoint::TrainState& state) {
  const auto step = std::ranges::find(history.steps, state.step, &report::StepReport::step);
  if (step == history.steps.end())
    return std::ranges::count(history.checkpoints, state.step, &report::CheckpointReport::step) > 0;
  // state.loss is that of the last update, and unknown if none was on these data (TrainingLoop::forget_what_differs).
  return step->tokens == state.tokens_seen && (step->skipped || std::isnan(state.loss) || step->loss == state.loss);
}

/// Warns if the metrics in the folder are not those of the run that begins with `state`.
void warn_of_another_run(const report::History& history, const std::filesystem::path& file,
                         const checkpoint::TrainState& state) {
  report::warn_of_bad_lines(history, file);
  if (history.steps.empty()) return;
  if (state.step == 0)
    log::warning("{}: steps of an earlier run are deleted, because this run starts from step 0", file.string());
  else if (!is_log_of(history, state))
    log::warning(
        "{}: does not record step {}, from which this run resumes, with its loss; its steps may be from a "
        "different run",
        file.string(), state.step);
}

report::OffloadReport offload_report(offload::Engine& engine) {
  static constexpr const char* memory[] = {"plain", "pinned", "staged", "pageable"};
  const offload::Report from = engine.report();
  report::OffloadReport report{.device_share = format("{}/{}", from.device_share.num, from.device_share.den),
                               .host = from.share.host,
                               .streamed = from.share.streamed,
                               .resident = from.share.resident,
                               .exposed_ms = from.exposed_ms};
  double busy_ms = 0;
  for (int kind = 0; kind < offload::kOperationKinds; ++kind)
    if (const int64_t bytes = from.bytes[static_cast<size_t>(kind)]; bytes > 0)
      report.bytes[std::string(name_of(static_cast<offload::OperationKind>(kind)))] = bytes;
  for (int stream = 0; stream < offload::kStreams; ++stream) {
    report.busy_ms[std::string(name_of(static_cast<offload::Stream>(stream)))] =
        from.busy_ms[static_cast<size_t>(stream)];
    busy_ms += from.busy_ms[static_cast<size_t>(stream)];
  }
  if (from.update_ms > 0) report.update_ms = from.update_ms;
  if (from.emulated_ms > 0) report.emulated_ms = from.emulated_ms;
  if (from.predicted_ms > 0) report.predicted_ms = from.predicted_ms;
  const bool emulated = engine.options().emulated;
  if (!emulated && from.update_ms > 0)
    report.parameters_per_s = 1e3 * static_cast<double>(from.share.total()) / from.update_ms;
  if (!emulated && busy_ms > 0) report.overlapped = std::max(0.0, 1 - from.exposed_ms / busy_ms);
  if (!emulated && from.memory_share > 0) report.memory_share = from.memory_share;
  report.subgroups = static_cast<int64_t>(engine.subgroups().size());
  report.largest_subgroup = offload::largest_of(engine.subgroups());
  report.resident_subgroups = std::ranges::count(engine.where(), offload::Residency::resident);
  report.slots = engine.placement().slots;
  report.host_memory = memory[static_cast<size_t>(engine.host_memory())];
  return report;
}

}  // namespace

Reporter::Reporter(const config::Config& config, const setup::RunPlan& plan, const setup::Machine& machine,
                   const data::TrainingData& data, const MemoryProbe& memory, setup::PeakTracker& peak, bool first)
    : config_(config), plan_(plan), machine_(machine), data_(data), peak_(peak), first_(first), memory_(memory) {}

const report::History& Reporter::earlier(int64_t step) {
  if (!earlier_) {
    cut_.step = step > 0 ? step : -1;
    earlier_ = report::read_history(metrics_file(config_), &cut_);
  }
  return *earlier_;
}

void Reporter::open(const checkpoint::TrainState& state) {
  if (!first_) return;
  started_ = now_seconds();
  const int64_t step = state.step;
  warn_of_another_run(earlier(step), metrics_file(config_), state);
  report::truncate(metrics_file(config_), cut_);
  earlier_.reset();  // it may be large
  samples_ = report::read_samples(config_.run.dir, step);
  if (config_.log.jsonl) metrics_.emplace(metrics_file(config_));
  if (config_.log.tensorboard) tensorboard_.emplace(config_.run.dir, step);
  if (machine_.gpu) power_.emplace(machine_.gpu->pci_bus_id);
}

void Reporter::start(const report::StartReport& start, std::string_view transport,
                     const std::vector<std::string>& notes) {
  if (!first_) return;
  start_ = start;
  start_.peak = peak_.report();
  log_start(start_, setup::exchange_text(config_, machine_.compute), machine_.compute_reason, transport);
  for (const std::string& note : notes)
    if (!note.empty()) log::info("{}", note);
  if (metrics_) metrics_->write(to_json(start_));
  if (tensorboard_) tensorboard_->write(start_);
}

void Reporter::show_progress(int64_t step) {
  if (first_) progress_.emplace(config_.log.progress, step, start_.total_steps, config_.log.interval);
}

void Reporter::step(const train::StepWork& work, const train::Trainer::Outcome& outcome, double seconds,
                    const checkpoint::TrainState& state, train::Trainer& trainer,
                    std::optional<train::ExpertStatistics> experts) {
  if (!first_) return;
  // By the second step all ranks that are threads of this process have updated once, and none has ended.
  if (steps_ < 2 || steps_ % 100 == 0) memory_.sample();
  step_seconds_ += seconds;
  bubble_seconds_ += outcome.bubble;
  ++steps_;

  report::StepReport r;
  r.step = work.step;
  r.tokens = state.tokens_seen;
  r.loss = outcome.loss;
  if (work.unmasked_tokens != start_.global_batch * start_.model.seq_len) r.loss_tokens = work.unmasked_tokens;
  if (config_.train.z_loss > 0) r.z_loss = outcome.z_loss;
  if (config_.model.n_expert > 0) {
    r.balance_loss = outcome.balance_loss;
    r.router_z_loss = outcome.router_z_loss;
  }
  if (experts) {
    r.experts = {experts->load_max, experts->load_layer, experts->idle, experts->entropy, experts->rounds};
    if (experts->rounds > 1 && !told_rounds_) {
      told_rounds_ = true;
      log::info(
          "step {}: the exchange of layer {} took {} rounds (load {:.2f}, parallel.expert_buffer {:g}); more rounds "
          "cost time, not tokens: raise train.balance_loss or parallel.expert_buffer",
          r.step, experts->rounds_layer, experts->rounds, experts->load_max, config_.parallel.expert_buffer);
    }
    choices_ = std::move(experts->counts);
  }
  r.lr = work.lr;
  r.grad_norm = outcome.norm.norm;
  r.skipped = outcome.skipped;
  r.bad_tensor = outcome.norm.bad_tensor;
  r.step_ms = seconds * 1e3;
  r.tokens_per_s = static_cast<double>(start_.global_batch * start_.model.seq_len) / seconds;
  const double tokens_per_device = r.tokens_per_s / machine_.ranks;
  r.tflops_per_device = plan_.flops.full() * tokens_per_device * 1e-12;
  const config::FlopsPerToken flops = config::with_visible_share(plan_.flops, outcome.visible_share);
  judge_peak(r.step, flops.hardware() * tokens_per_device, trainer.meter());
  const config::Utilisation use = config::utilisation(flops, tokens_per_device, peak_.flops());
  r.mfu = use.mfu;
  r.mfu_causal = use.mfu_causal;
  r.hfu = use.hfu;
  r.peak_tflops = peak_.flops() / 1e12;
  r.bubble = outcome.bubble / seconds;
  r.optimizer_flops = trainer.meter().of(OpKind::orthogonalize).flops;
  r.phase_ms = outcome.phase_ms;
  for (const auto& [key, count] : trainer.meter().comm()) {
    const double ms = count.wait_seconds * 1e3;
    r.phase_ms.comm_exposed += ms;
    if (count.calls > 0) r.comm_wait_ms[trainer.mesh().shape().name_of(key.axes)][std::string(name_of(key.op))] += ms;
  }
  r.comm_bytes = trainer.comm_bytes(trainer.meter().comm());
  for (const auto& [axis, operations] : r.comm_bytes)
    for (const auto& [operation, bytes] : operations) comm_bytes_[axis][operation] += bytes;
  r.memory_bytes = trainer.memory();
  r.data_position = state.samples_seen;
  if (const data::Mixture* mixture = data_.mixture())
    r.sources = mixture->samples_before(state.samples_seen);
  else if (start_.windows > 0)
    r.epoch = static_cast<double>(state.samples_seen) / static_cast<double>(start_.windows);
  if (trainer.offload() != nullptr) r.offload = offload_report(*trainer.offload());
  if (power_) r.gpu = power_->recent();
  if (metrics_) metrics_->write(to_json(r));
  if (tensorboard_) tensorboard_->write(r);
  skipped_ += r.skipped;
  wait_seconds_ += r.phase_ms.comm_exposed * 1e-3;
  if (!first_step_) first_step_ = r;
  last_step_ = r;
  const CommBytes expected = trainer.expected_comm_bytes(plan_.comm_bytes);
  if (!r.skipped && !bytes_differ_ && r.comm_bytes != expected) {
    bytes_differ_ = true;
    warn(r.step, format("step {} sent {}, but {} was predicted", r.step, comm_text(r.comm_bytes), comm_text(expected)));
  }
  if (progress_) progress_->step(r);
}

void Reporter::judge_peak(int64_t step, double flops_per_s, const Meter& meter) {
  const auto saw = [&](double rate, const char* what) {
    if (!(rate > peak_.flops())) return;
    if (const std::string message = peak_.raise_to_rate(rate, format("{} step {}", what, step)); !message.empty())
      warn(step, message);
  };
  // The times of individual operators are not known on a GPU, since the host waits for all of them together.
  for (const auto& [kind, what] : {std::pair{OpKind::gemm, "the GEMMs of"}, {OpKind::attention, "the attention of"}}) {
    const Meter::Entry& entry = meter.of(kind);
    if (!machine_.gpu && peak_.is_measured() && entry.seconds > 0) saw(entry.flops / entry.seconds, what);
  }
  saw(flops_per_s, "the whole of");
}

void Reporter::evaluation(const report::EvalReport& eval) {
  if (!first_) return;
  last_eval_ = eval;
  if (metrics_) metrics_->write(to_json(eval));
  if (tensorboard_) tensorboard_->write(eval);
  if (!std::isfinite(eval.loss))
    return warn(eval.step, format("step {}: the validation loss is not finite", eval.step));
  if (!eval.sets.empty()) {
    std::string text;
    for (const report::SetReport& set : eval.sets)
      text += format("{} {} {:.4f}{}", text.empty() ? "" : ",", set.name, set.loss,
                     set.bits_per_byte ? format(" ({:.4f} bits per byte)", *set.bits_per_byte) : "");
    return log::info("step {}: validation{}", eval.step, text);
  }
  log::info("step {}: validation loss {:.4f}, perplexity {:.2f}{}", eval.step, eval.loss, eval.perplexity,
            eval.bits_per_byte ? format(", {:.4f} bits per byte", *eval.bits_per_byte) : "");
}

void Reporter::tasks(const report::TasksReport& tasks) {
  if (!first_) return;
  if (metrics_) metrics_->write(to_json(tasks));
  if (tensorboard_) tensorboard_->write(tasks);
  std::vector<std::string> texts;
  for (const report::TaskReport& task : tasks.tasks)
    texts.push_back(format("{} {:.3f} ({})", task.name, task.score, task.questions));
  if (std::isfinite(tasks.core)) texts.push_back(format("core {:.3f}", tasks.core));
  log::info("step {}: tasks: {}", tasks.step, fmt::join(texts, ", "));
}

void Reporter::ranks(const report::RanksReport& ranks) {
  if (metrics_) metrics_->write(to_json(ranks));
}

void Reporter::status(const std::string& activity) {
  if (progress_) progress_->status(activity);
}

void Reporter::checkpoint(const report::CheckpointReport& checkpoint) {
  if (metrics_) metrics_->write(to_json(checkpoint));
}

void Reporter::sample(report::Sample sample) {
  if (!first_) return;
  log::info("--- sample at step {} ---\n{}{}\n---", sample.step, report::printable(sample.prompt),
            report::printable(sample.text));
  if (tensorboard_) tensorboard_->write(sample);
  samples_.push_back(std::move(sample));
}

void Reporter::warn(int64_t step, const std::string& message) {
  if (!first_) return;
  log::warning("{}", message);
  const report::WarningReport warning{step, message};
  if (metrics_) metrics_->write(to_json(warning));
  if (tensorboard_) tensorboard_->write(warning);
}

int64_t Reporter::measured_memory(const train::Trainer& trainer) const {
  if (!machine_.gpu) return memory_.peak();
  int64_t bytes = 0;
  for (const auto& [category, peak] : trainer.memory())
    if (!category.starts_with("host")) bytes += peak;
  return bytes;
}

void Reporter::complete(report::History& history, const report::EndReport& end) const {
  history.start = start_;
  if (first_step_ && history.steps.empty()) history.steps.push_back(*first_step_);
  if (last_step_ && history.steps.back().step != last_step_->step) history.steps.push_back(*last_step_);
  if (last_eval_ && (history.evals.empty() || history.evals.back().step != last_eval_->step))
    history.evals.push_back(*last_eval_);
  if (history.ends.empty() || history.ends.back().step != end.step) history.ends.push_back(end);
  if (end.peak.flops > 0) history.peak = end.peak;
}

void Reporter::judge_prediction(const report::EndReport& end) {
  constexpr double kTolerance = 0.25;
  const double ratio = end.measured.step_ms / end.predicted.step_ms;
  if (!(std::abs(ratio - 1) > kTolerance)) return;  // accurate, or unknown (NaN)
  const double waits = end.measured.wait_ms, expected = end.predicted.wait_ms;
  const double compute = end.measured.step_ms - waits, expected_compute = end.predicted.step_ms - expected;
  const bool by_waits = std::abs(waits - expected) > std::abs(compute - expected_compute);
  warn(end.step, format("a step took {:.4g} ms, but {:.4g} ms was predicted: {} took {:.4g} ms instead of {:.4g}; "
                        "measure the machine again with `trainer bench all --write-profile`",
                        end.measured.step_ms, end.predicted.step_ms, by_waits ? "exposed communication" : "compute",
                        by_waits ? waits : compute, by_waits ? expected : expected_compute));
}

void Reporter::repeat_summary(int64_t step) {
  if (!first_) return;
  const report::History& history = earlier(step);
  if (!history.start) return;
  for (const std::string& line : report::summary_lines(report::summarize(history, {}), config_.run.dir))
    log::info("{}", line);
}

bool Reporter::restore_report(int64_t step) {
  if (!first_ || !config_.log.report || report::step_of_report(config_.run.dir) == step) return false;
  const report::History& history = earlier(step);
  if (!history.start) return false;
  report::Summary summary = report::summarize(history, report::read_samples(config_.run.dir, step));
  if (summary.step == step) summary.outcome = "finished";  // the killed process could not record it
  return write_report_or_warn(config_.run.dir, summary, history);
}

void Reporter::end(const checkpoint::TrainState& state, const std::string& outcome, const train::Trainer& trainer) {
  progress_.reset();  // the summary comes after the last progress line
  if (!metrics_) return;
  memory_.sample();
  report::EndReport end;
  end.step = state.step;
  end.tokens = state.tokens_seen;
  end.outcome = outcome;
  end.wall_s = now_seconds() - started_;
  end.predicted = start_.predicted;
  for (auto& [axis, operations] : end.predicted.comm_bytes)
    for (auto& [operation, bytes] : operations) bytes *= steps_;
  const double steps = steps_ > 0 ? static_cast<double>(steps_) : kUnknown;
  end.measured = {.step_ms = step_seconds_ * 1e3 / steps,
                  .wait_ms = wait_seconds_ * 1e3 / steps,
                  .memory_bytes = measured_memory(trainer),
                  .comm_bytes = comm_bytes_,
                  .bubble = bubble_seconds_ / step_seconds_};
  end.peak = peak_.report();
  end.choices = choices_;
  judge_prediction(end);
  metrics_->write(to_json(end));
  report::History history = report::read_history(metrics_file(config_));
  if (metrics_->lost() > 0) {
    log::warning("{} is missing {} lines that could not be written", metrics_file(config_).string(), metrics_->lost());
    complete(history, end);
  }
  report::Summary summary = report::summarize(history, samples_);
  summary.skipped_steps = std::max(summary.skipped_steps, skipped_);
  summary.chats = config::has_conversations(config_.data);
  if (config_.log.report) write_report_or_warn(config_.run.dir, summary, history);
  for (const std::string& line : report::summary_lines(summary, config_.run.dir)) log::info("{}", line);
}

}  // namespace trainer::run
