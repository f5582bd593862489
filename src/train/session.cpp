#include "train/session.h"

#include <cmath>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "checkpoint/param_slices.h"
#include "checkpoint/run_lock.h"
#include "comm/gpu_transport.h"
#include "data/source.h"
#include "optim/schedule.h"
#include "train/deadline.h"
#include "train/evaluate.h"
#include "train/fallback.h"
#include "train/generate.h"
#include "train/machine.h"
#include "train/memory_probe.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/replica_check.h"
#include "train/report_html.h"
#include "train/run_folder.h"
#include "train/run_state.h"
#include "train/signals.h"
#include "train/start_report.h"
#include "train/summary.h"
#include "train/units.h"

namespace trainer::train {
namespace {

namespace fs = std::filesystem;

constexpr int kSavedAfterSignal = 75;

class Session {
 public:
  Session(comm::World& world, const config::Config& config, const SessionOptions& options, const Deadline& deadline,
          const Machine& machine, data::Datasets datasets)
      : world_(world),
        config_(config),
        options_(options),
        deadline_(deadline),
        machine_(machine),
        datasets_(std::move(datasets)),
        folder_(config.run.dir),
        total_steps_(config::total_steps(config)),
        plan_(plan_run(config, datasets_.vocab, machine, true)),
        device_((require_memory(plan_, config, datasets_.vocab, machine), make_device(machine))),
        between_gpus_(comm::choose_gpu_transport(world, *device_, config.parallel.transport)),
        gpu_world_(comm::gpu_world(world, *device_, between_gpus_)),
        trainer_(*device_, gpu_world_ ? *gpu_world_ : world, config, datasets_.vocab, machine.compute, true),
        accumulation_(trainer_.accumulation()),
        store_(checkpoint_folder(config),
               {config.checkpoint.keep, config.checkpoint.keep_every, config.checkpoint.keep_best},
               checkpoint::system_calls(), &world) {}

  int run() {
    begin();
    if (trainer_.on_any_rank(evaluation_missing())) evaluate_now();
    if (state_.step >= total_steps_) {
      log::info("the run is finished: {} of {} steps are done", state_.step, total_steps_);
      const int status = finish("finished");
      return stopped() ? kSavedAfterSignal : status;
    }
    if (world_.first()) progress_.emplace(config_.log.progress, state_.step, total_steps_, config_.log.interval);
    const int64_t last =
        options_.max_steps > 0 ? std::min(total_steps_, state_.step + options_.max_steps) : total_steps_;
    std::string outcome = last == total_steps_ ? "finished" : "stopped after --max-steps";
    while (state_.step < last) {
      if (!step()) break;
      if (evaluation_due()) evaluate_now();
      if (due(config_.train.sample_interval) && state_.step < total_steps_) sample_now();
      const Requests requests = agreed_requests();
      if (requests.stop) break;
      if (state_.step < last && (requests.save || due(config_.checkpoint.interval))) save_or_warn();
      if (due(config_.debug.check_replicas_every)) check_replicas(trainer_, state_.step);
      if (requests.time_is_up) {
        outcome = "stopped at --max-time";
        break;
      }
    }
    if (stopped()) outcome = format("stopped by {}", signal_name(stop_signal()));
    if (saved_step_ != state_.step && state_.step > 0) save();
    if (state_.step == total_steps_) sample_now();
    progress_.reset();  // the summary comes after its last line
    const int status = finish(outcome);
    return stopped() ? kSavedAfterSignal : status;
  }

 private:
  /// What reached any of the ranks since the last step. Each asks for itself; all act alike.
  struct Requests {
    bool stop, save, time_is_up;
  };
  Requests agreed_requests() {
    double flags[] = {stop_requested() ? 1.0 : 0.0, take_save_request() ? 1.0 : 0.0, deadline_.passed() ? 1.0 : 0.0};
    trainer_.max_over_ranks(flags);
    return {flags[0] > 0, flags[1] > 0, flags[2] > 0};
  }
  bool stopped() { return trainer_.on_any_rank(stop_requested()); }

  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool evaluation_due() const { return due(config_.train.eval_interval) || state_.step == total_steps_; }
  // A signal cut the evaluation of the resumed step short; the step itself was saved.
  bool evaluation_missing() const {
    if (!world_.first() || state_.step == 0 || !evaluation_due()) return false;
    const std::vector<EvalReport> evals = read_history(folder_ / "metrics.jsonl").evals;
    return evals.empty() || evals.back().step != state_.step;
  }

  // Everything before the first step: where the weights come from, the measured peak, the start event.
  void begin() {
    use_gemm_tuning(config_, world_, *device_);
    trainer_.plan();
    expected_ = snapshot_header(config_, datasets_, machine_.compute);
    if (const auto resumed = resume(trainer_, checkpoint_folder(config_), expected_)) {
      state_ = resumed->state;
      saved_step_ = state_.step;
      log::info("resumed step {} from {}", state_.step, resumed->folder.string());
      for (const std::string& change : changed_lines(resumed->config_toml, expected_.config_toml))
        log::info("changed since: {}", change);
    } else if (!config_.model.init_from.empty()) {
      const checkpoint::Reader reader(config_.model.init_from);  // each rank reads what it holds
      load_first_whole(world_, {reader.folder()}, "", [&](const fs::path&) { return load_weights(trainer_, reader); });
      log::info("weights of {}, fresh optimizer", reader.folder().string());
    } else {
      trainer_.store().initialize(static_cast<uint64_t>(config_.run.seed));
    }
    peak_ = find_peak(*device_, machine_, config_);
    if (writes_samples(config_) && trainer_.replica() == 0) generator_.emplace(trainer_);
    if (!world_.first()) return;
    if (machine_.gpu) power_.emplace(machine_.gpu->pci_bus_id);
    truncate_after_step(folder_ / "metrics.jsonl", state_.step);
    samples_ = read_samples(folder_, state_.step);
    write_run_files(config_, expected_.config_toml, expected_.tokenizer);
    if (config_.log.jsonl) metrics_.emplace(folder_ / "metrics.jsonl");
    announce();
  }

  void announce() {
    StartReport start = start_report(config_, datasets_, plan_, machine_);
    start.step = state_.step;
    start.accumulation = accumulation_;
    start.data_replicas = trainer_.replicas();
    start.peak_flops = peak_.flops;
    start.peak_origin = peak_.origin;
    start.environment = {options_.version,
                         options_.commit,
                         machine_.gpu ? "cuda" : "cpu",
                         device_text(machine_),
                         ops::product_path(*device_, machine_.compute),
                         world_.size(),
                         machine_.threads};
    start.config_toml = expected_.config_toml;
    log_start(start, machine_.compute_reason, world_.transport());
    if (!between_gpus_.reason.empty()) log::info("tensors between GPUs: {}", between_gpus_.reason);
    if (!trainer_.graphs().text().empty()) log::info("CUDA graphs: {}", trainer_.graphs().text());
    if (metrics_) metrics_->write(start);
  }

  int64_t tokens_per_step() const { return config_.train.global_batch * config_.model.seq_len; }

  // One optimizer step and its report. False when a stop came between micro-steps: the partial step is discarded.
  bool step() {
    StepWork work;
    work.step = state_.step + 1;
    work.first_sample = state_.samples_seen;
    work.adam_step = state_.adam_step + 1;
    work.micro_batches = accumulation_;
    work.lr = optim::learning_rate(config_.optim, total_steps_, work.step);
    trainer_.meter().reset();  // of evaluations, samples and saves: they are not the step's
    const double start = now_seconds();
    const Trainer::Outcome outcome = trainer_.step(work, batches_, stop_requested);
    if (outcome.interrupted) return false;
    const double seconds = now_seconds() - start;

    state_.step = work.step;
    state_.samples_seen += config_.train.global_batch;
    state_.tokens_seen += tokens_per_step();
    if (!outcome.skipped) state_.adam_step = work.adam_step;
    report(work, outcome, seconds);
    count_skips(outcome);
    if (memory_.peak() == 0 || state_.step % 100 == 0) memory_.sample();
    return true;
  }

  void report(const StepWork& work, const Trainer::Outcome& outcome, double seconds) {
    StepReport r;
    r.step = state_.step;
    r.tokens = state_.tokens_seen;
    r.loss = outcome.loss;
    r.lr = work.lr;
    r.grad_norm = outcome.norm.norm;
    r.skipped = outcome.skipped;
    r.bad_tensor = outcome.norm.bad_tensor;
    r.step_ms = seconds * 1e3;
    r.tokens_per_s = static_cast<double>(tokens_per_step()) / seconds;
    const double tokens_per_device = r.tokens_per_s / world_.size();
    r.tflops_per_device = plan_.flops.full() * tokens_per_device * 1e-12;
    const Utilisation use = utilisation(plan_.flops, tokens_per_device, peak_.flops);
    r.mfu = use.mfu;
    r.mfu_causal = use.mfu_causal;
    r.hfu = use.hfu;
    r.phase_ms = outcome.phase_ms;
    for (const auto& [key, count] : trainer_.meter().comm()) r.phase_ms.comm_exposed += count.wait_seconds * 1e3;
    r.comm_bytes = trainer_.comm_bytes(trainer_.meter().comm());
    for (const auto& [axis, operations] : r.comm_bytes)
      for (const auto& [operation, bytes] : operations) comm_bytes_[axis][operation] += bytes;
    r.memory_bytes = trainer_.memory();
    r.data_position = state_.samples_seen;
    if (power_) r.gpu = power_->recent();
    if (metrics_) metrics_->write(r);
    if (!r.skipped && !bytes_differ_ && r.comm_bytes != plan_.comm_bytes) {
      bytes_differ_ = true;
      warn(format("step {} sent other bytes than predicted: {}, not {}", r.step, to_string(r.comm_bytes),
                  to_string(plan_.comm_bytes)));
    }
    if (progress_) progress_->step(r);
    step_seconds_ += seconds;
    ++steps_run_;
  }

  void count_skips(const Trainer::Outcome& outcome) {
    if (!outcome.skipped) {
      skips_ = 0;
      return;
    }
    ++skips_;
    const std::string what = outcome.norm.finite() ? "the loss" : outcome.norm.bad_tensor;
    const std::string message = format("step {}: {} is not finite, the update was skipped ({} in a row, {} allowed)",
                                       state_.step, what, skips_, config_.train.max_skipped_steps);
    warn(message);
    if (skips_ > config_.train.max_skipped_steps)
      throw Error(Code::nonfinite,
                  message + format("; the last checkpoint is step {}. Lower optim.lr or set optim.grad_clip",
                                   std::max<int64_t>(saved_step_, 0)))
          .on(Scope::all_ranks);
  }

  /// What all ranks know is said once.
  void warn(const std::string& message) {
    if (!world_.first()) return;
    log::warning("{}", message);
    if (metrics_) metrics_->write(WarningReport{state_.step, message});
  }

  void evaluate_now() {
    if (!datasets_.val) return;
    Evaluation result =
        evaluate(trainer_, *datasets_.val, config_.train.eval_batches,
                 datasets_.tokenizer ? &*datasets_.tokenizer : nullptr, [&](int64_t done, int64_t windows) {
                   if (progress_) progress_->status(format("evaluating {}/{}", done, windows));
                   return !stop_requested();
                 });
    if (result.interrupted) return;
    result.report.step = state_.step;
    if (!(state_.best_val_loss <= result.report.loss)) {
      state_.best_val_loss = result.report.loss;
      state_.best_step = state_.step;
    }
    if (metrics_) metrics_->write(result.report);
    log::info("step {}: validation loss {:.4f}, perplexity {:.2f}{}", state_.step, result.report.loss,
              result.report.perplexity,
              result.report.bits_per_byte ? format(", {:.4f} bits per byte", *result.report.bits_per_byte) : "");
  }

  void sample_now() {
    if (!generator_) return;
    const Sampling sampling{.temperature = 0.8, .top_k = 200, .seed = static_cast<uint64_t>(config_.run.seed)};
    Sample sample{state_.step, config_.train.sample_prompt, {}};
    sample.text = generator_->complete(*datasets_.tokenizer, sample.prompt, config_.train.sample_tokens, sampling);
    if (!world_.first()) return;
    log::info("--- sample at step {} ---\n{}{}\n---", state_.step, sample.prompt, sample.text);
    samples_.push_back(std::move(sample));
  }

  // A save that fails (disk full) costs a checkpoint, not the run; the next interval tries again.
  void save_or_warn() {
    try {
      save();
    } catch (const Error& error) {
      if (error.code() != Code::io) throw;
      warn(format("step {}: no checkpoint was saved: {}", state_.step, error.what()));
    }
  }

  void save() {
    const double start = now_seconds();
    checkpoint::Snapshot snapshot = expected_;
    snapshot.state = state_;
    snapshot.tensors = checkpoint::slices_to_save(trainer_.store(), /*moments=*/true);
    CheckpointReport report;
    report.step = state_.step;
    report.path = store_.save(snapshot).string();
    for (const checkpoint::TensorSlice& slice : snapshot.tensors)
      report.bytes += slice.shape.count() * size_of(slice.local.dtype);
    report.seconds = now_seconds() - start;
    report.best = state_.best_step == state_.step;
    saved_step_ = state_.step;
    if (metrics_) metrics_->write(report);
  }

  /// What is compared with the plan: memory of the process, or on a GPU what was taken of the device.
  int64_t measured_memory() const {
    if (!machine_.gpu) return memory_.peak();
    int64_t bytes = 0;
    for (const auto& [category, peak] : trainer_.memory()) bytes += peak;
    return bytes;
  }

  int finish(const std::string& outcome) {
    memory_.sample();
    EndReport end;
    end.step = state_.step;
    end.tokens = state_.tokens_seen;
    end.outcome = outcome;
    end.wall_s = now_seconds() - started_;
    end.predicted = {.memory_bytes = plan_.total, .comm_bytes = plan_.comm_bytes};
    for (auto& [axis, operations] : end.predicted.comm_bytes)
      for (auto& [operation, bytes] : operations) bytes *= steps_run_;
    end.measured = {.step_ms = steps_run_ > 0 ? step_seconds_ * 1e3 / static_cast<double>(steps_run_) : kUnknown,
                    .memory_bytes = measured_memory(),
                    .comm_bytes = comm_bytes_};
    if (metrics_) metrics_->write(end);
    if (!metrics_) return 0;
    const History history = read_history(folder_ / "metrics.jsonl");
    const Summary summary = summarize(history, samples_);
    if (config_.log.report) write_report_or_warn(folder_, summary, history);
    for (const std::string& line : summary_lines(summary, folder_)) log::info("{}", line);
    return 0;
  }

  comm::World& world_;
  config::Config config_;
  SessionOptions options_;
  Deadline deadline_;
  Machine machine_;
  MemoryProbe memory_;
  data::Datasets datasets_;
  fs::path folder_;
  int64_t total_steps_;
  RunPlan plan_;
  std::unique_ptr<device::Device> device_;
  comm::GpuTransport between_gpus_;
  std::unique_ptr<comm::World> gpu_world_;  // null: world_
  Trainer trainer_;
  int64_t accumulation_;
  checkpoint::CheckpointStore store_;
  const BatchSource batches_ = [this](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    datasets_.train->train_batch(sample, sequences, out);
    datasets_.train->prefetch(sample + sequences, sequences);
  };
  std::optional<Generator> generator_;
  std::optional<MetricsLog> metrics_;
  std::optional<Progress> progress_;
  checkpoint::Snapshot expected_;
  checkpoint::TrainState state_;
  std::vector<Sample> samples_;
  CommBytes comm_bytes_;
  Peak peak_{};
  std::optional<device::PowerMeter> power_;
  double started_ = now_seconds(), step_seconds_ = 0;
  int64_t steps_run_ = 0, skips_ = 0, saved_step_ = -1;
  bool bytes_differ_ = false;
};

data::Datasets open_datasets(const config::Config& config, int threads, const Deadline& deadline) {
  double last = now_seconds();
  data::OpenOptions options;
  options.threads = threads;
  options.stop = [&] { return stop_requested() || deadline.passed(); };
  options.progress = [&](const data::TokenizeProgress& done) {
    if (now_seconds() - last < 2) return;
    last = now_seconds();
    log::info("tokenizing: {} of {}, {} tokens", format_bytes(static_cast<double>(done.bytes)),
              format_bytes(static_cast<double>(done.total_bytes)), format_count(static_cast<double>(done.tokens)));
  };
  return data::open_data(config, options);
}

}  // namespace

int run_session(comm::World& world, const config::Config& config, const SessionOptions& options,
                std::string& plan_text) {
  const Machine machine = choose_machine(config, world);
  if (options.dry_run) {
    const int64_t vocab = data::planned_vocab(config);
    const RunPlan plan = plan_run(config, vocab, machine, true);
    plan_text = to_text(plan, config, machine);
    require_memory(plan, config, vocab, machine);
    return 0;
  }
  const Deadline deadline = options.max_seconds > 0 ? Deadline(options.max_seconds) : Deadline();
  std::optional<SignalGuard> signals;  // handlers belong to a process; ranks that are threads share those of the first
  if (world.first() || world.transport() != "threads") signals.emplace();
  std::optional<checkpoint::RunLock> lock;
  data::Datasets datasets;
  // The first rank tokenizes and keeps the result; the others find it.
  world.control().together([&] {
    if (!world.first()) return;
    lock.emplace(config.run.dir);
    datasets = open_datasets(config, machine.threads, deadline);
  });
  double ready[] = {datasets.train ? 1.0 : 0.0, stop_requested() ? 1.0 : 0.0};
  world.control().sum(ready);
  if (ready[0] == 0) {
    log::info("stopped while tokenizing; the same command goes on from here");
    return ready[1] > 0 ? kSavedAfterSignal : 0;
  }
  world.control().together([&] {
    if (!world.first()) datasets = data::open_data(config, {.threads = machine.threads});
  });
  return Session(world, config, options, deadline, machine, std::move(datasets)).run();
}

}  // namespace trainer::train
