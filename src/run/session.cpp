#include "run/session.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/log.h"
#include "checkpoint/param_slices.h"
#include "checkpoint/run_lock.h"
#include "comm/gpu_transport.h"
#include "config/layout_rules.h"
#include "data/mapping_guard.h"
#include "data/source.h"
#include "measure/peak.h"
#include "measure/units.h"
#include "optim/schedule.h"
#include "plan/gemm_tuning.h"
#include "plan/run_plan.h"
#include "report/history.h"
#include "run/deadline.h"
#include "run/evaluate.h"
#include "run/fallback.h"
#include "run/planning.h"
#include "run/reporter.h"
#include "run/run_data.h"
#include "run/run_folder.h"
#include "run/run_state.h"
#include "run/signals.h"
#include "run/start_report.h"
#include "train/generate.h"
#include "train/replica_check.h"
#include "train/soundness.h"

namespace trainer::run {
namespace {

namespace fs = std::filesystem;

constexpr double kNotFinite = std::numeric_limits<double>::infinity();

/// Polled between micro-steps.
bool stop_or_data_cut_short() { return stop_requested() || !data::mappings_whole(); }

class Session {
 public:
  Session(comm::World& world, const config::Config& config, const SessionOptions& options, const Deadline& deadline,
          const plan::Machine& machine, const std::string& tuning_hash, data::Datasets datasets, plan::RunPlan plan)
      : world_(world),
        config_(config),
        options_(options),
        deadline_(deadline),
        machine_(machine),
        datasets_(std::move(datasets)),
        expected_(snapshot_header(config, datasets_, machine.compute, tuning_hash)),
        total_steps_(config::total_steps(config)),
        plan_(std::move(plan)),
        device_(plan::make_device(machine)),
        between_gpus_(comm::choose_gpu_transport(world, *device_, config.parallel.transport)),
        gpu_world_(comm::gpu_world(world, *device_, between_gpus_)),
        trainer_(*device_, gpu_world_ ? *gpu_world_ : world, config, datasets_.vocab, machine.compute, true),
        accumulation_(trainer_.accumulation()),
        store_(checkpoint_folder(config),
               {config.checkpoint.keep, config.checkpoint.keep_every, config.checkpoint.keep_best},
               checkpoint::system_calls(), &world),
        peak_(measure::make_peak(*device_, machine_.compute, config_, world)),
        reporter_(config_, plan_, machine_, memory_, peak_, world.first()) {}

  int run() {
    begin();
    if (trainer_.on_any_rank(evaluation_missing())) evaluate_now();
    if (evaluation_cut_) return finish(stopped() ? stop_text() : "stopped at --max-time");
    if (state_.step >= total_steps_) {
      log::info("the run is finished: {} of {} steps are done", state_.step, total_steps_);
      require_convergence();
      return finish("finished");
    }
    reporter_.show_progress(state_.step);
    const int64_t last =
        options_.max_steps > 0 ? std::min(total_steps_, state_.step + options_.max_steps) : total_steps_;
    std::string outcome = last == total_steps_ ? "finished" : "stopped after --max-steps";
    try {
      outcome = steps_until(last, outcome);
    } catch (const Error& error) {  // one rank alone has no others to agree with, and nothing was updated
      if (error.code() == Code::data && world_.size() == 1) save_last_step();
      throw;
    }
    require_whole_data();
    if (stopped()) outcome = stop_text();
    if (state_.step == total_steps_) require_convergence();
    save_last_step();
    if (state_.step == total_steps_) sample_now();
    return finish(outcome);
  }

 private:
  /// Trains up to a step, or until something asks for a stop. Returns `outcome`, or what came between.
  std::string steps_until(int64_t last, const std::string& outcome) {
    while (state_.step < last) {
      if (!step()) break;
      if (evaluation_due()) evaluate_now();
      if (due(config_.train.sample_interval) && state_.step < total_steps_) sample_now();
      const Requests requests = agreed_requests();
      if (requests.stop) break;
      if (requests.peak) peak_.visit();
      if (state_.step < last && (requests.save || periodic_save_due())) save_or_warn();
      if (due(config_.debug.check_replicas_every)) train::check_replicas(trainer_, state_.step);
      if (requests.time_is_up) return "stopped at --max-time";
    }
    return outcome;
  }

  static std::string stop_text() { return format("stopped by {}", signal_name(stop_signal())); }

  void save_last_step() {
    if (saved_step_ != state_.step && state_.step > 0) save();
  }

  /// Ends the run where a token file was cut short under it, after saving the last step that was completed before.
  void require_whole_data() {
    if (!trainer_.on_any_rank(!data::mappings_whole())) return;
    save_last_step();
    world_.control().together([&] {
      datasets_.train->stream().require_whole();
      if (datasets_.val) datasets_.val->stream().require_whole();
    });
  }

  /// Ranks that are threads share a process, and what the system says of its memory. A GPU's is each rank's own.
  int ranks_of_process() const { return world_.transport() == "threads" && !machine_.gpu ? world_.size() : 1; }

  /// What reached any of the ranks since the last step. Each asks for itself; all act alike.
  struct Requests {
    bool stop, save, time_is_up;
    bool peak;  // the first rank has time to measure it
  };
  Requests agreed_requests() {
    double flags[] = {stop_requested() ? 1.0 : 0.0, take_save_request() ? 1.0 : 0.0, deadline_.passed() ? 1.0 : 0.0,
                      world_.first() && peak_.due() ? 1.0 : 0.0};
    trainer_.max_over_ranks(flags);
    return {flags[0] > 0, flags[1] > 0, flags[2] > 0, flags[3] > 0};
  }
  bool stopped() { return trainer_.on_any_rank(stop_requested()); }

  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool evaluation_due() const { return due(config_.train.eval_interval) || state_.step == total_steps_; }
  // After a step that was skipped the model is not worth a place among those that are kept.
  bool periodic_save_due() {
    if (!due(config_.checkpoint.interval) || state_.skipped_in_row > 0) return false;
    if (train::weights_are_finite(trainer_)) return true;
    reporter_.warn(state_.step, format("step {}: weights are not finite: no checkpoint was saved", state_.step));
    return false;
  }
  // A signal cut the evaluation of the resumed step short; the step itself was saved.
  bool evaluation_missing() {
    if (!world_.first() || state_.step == 0 || !evaluation_due()) return false;
    const std::vector<report::EvalReport> evals =
        report::read_history(fs::path(config_.run.dir) / "metrics.jsonl").evals;
    if (evals.empty() || evals.back().step != state_.step) return true;
    loss_of_last_ = std::isfinite(evals.back().loss) ? evals.back().loss : kNotFinite;
    return false;
  }

  // Everything before the first step: where the weights come from, the measured peak, the start event.
  void begin() {
    measure_peak();
    {
      const PlanningWatch watch(world_, config_.model.n_layer);
      trainer_.plan();
    }
    measure_peak();
    if (const auto resumed = resume(trainer_, checkpoint_folder(config_), expected_)) {
      state_ = resumed->state;
      saved_step_ = state_.step;
      log::info("resumed step {} from {}", state_.step, resumed->folder.string());
      log_changes(*resumed, expected_);
    } else if (!config_.model.init_from.empty()) {
      const checkpoint::Reader reader(config_.model.init_from);  // each rank reads what it holds
      checkpoint::require_same_tokenizer(reader.header(), expected_, reader.folder(),
                                         config_.checkpoint.allow_other_data);
      load_first_whole(world_, {reader.folder()}, "", [&](const fs::path&) { return load_weights(trainer_, reader); });
      log::info("weights of {}, fresh optimizer", reader.folder().string());
    } else {
      trainer_.store().initialize(static_cast<uint64_t>(config_.run.seed));
    }
    measure_peak();
    if (plan::writes_samples(config_) && trainer_.replica() == 0) generator_.emplace(trainer_);
    reporter_.open(state_.step);
    if (world_.first()) write_run_files(config_, expected_.config_toml, expected_.tokenizer);
    measure_peak();
    announce();
  }

  // One moment of several, since what disturbs comes and goes.
  void measure_peak() {
    double late[] = {peak_.seconds() > measure::PeakTracker::kStartSeconds ? 1.0 : 0.0};
    world_.control().sum(late);
    if (late[0] == 0) peak_.measure();
  }

  void announce() {
    report::StartReport start = start_report(config_, datasets_, plan_, machine_, ranks_of_process());
    start.step = state_.step;
    start.accumulation = accumulation_;
    start.data_replicas = trainer_.replicas() / config::depth_of_replica(config_);
    start.environment = {options_.version,
                         options_.commit,
                         machine_.gpu ? "cuda" : "cpu",
                         plan::device_text(machine_),
                         ops::product_path(*device_, machine_.compute),
                         world_.size(),
                         machine_.threads};
    start.config_toml = expected_.config_toml;
    const std::string& graphs = trainer_.graphs().text();
    reporter_.start(start, world_.transport(),
                    {between_gpus_.reason.empty() ? "" : "tensors between GPUs: " + between_gpus_.reason,
                     graphs.empty() ? "" : "CUDA graphs: " + graphs});
  }

  // One optimizer step and its report. False when a stop came between micro-steps: the partial step is discarded.
  bool step() {
    train::StepWork work;
    work.step = state_.step + 1;
    work.first_sample = state_.samples_seen;
    work.adam_step = state_.adam_step + 1;
    work.micro_batches = accumulation_;
    work.lr = optim::learning_rate(config_.optim, total_steps_, work.step);
    trainer_.meter().reset();  // of evaluations, samples and saves: they are not the step's
    const double start = now_seconds();
    const train::Trainer::Outcome outcome = trainer_.step(work, batches_, stop_or_data_cut_short);
    if (outcome.interrupted) return false;
    const double seconds = now_seconds() - start;

    state_.step = work.step;
    state_.samples_seen += config_.train.global_batch;
    state_.tokens_seen += config_.train.global_batch * config_.model.seq_len;
    if (!outcome.skipped) state_.adam_step = work.adam_step;
    state_.skipped_in_row = outcome.skipped ? state_.skipped_in_row + 1 : 0;
    loss_of_last_ = measure::kUnknown;
    reporter_.step(work, outcome, seconds, state_, trainer_);
    if (outcome.skipped) warn_of_skip(outcome);
    return true;
  }

  void warn_of_skip(const train::Trainer::Outcome& outcome) {
    const std::string what = outcome.norm.finite() ? "the loss" : outcome.norm.bad_tensor;
    const std::string message = format("step {}: {} is not finite, the update was skipped ({} in a row, {} allowed)",
                                       state_.step, what, state_.skipped_in_row, config_.train.max_skipped_steps);
    reporter_.warn(state_.step, message);
    if (state_.skipped_in_row > config_.train.max_skipped_steps) give_up(message);
  }

  // The run ends, on all ranks; what was saved stays as it is.
  [[noreturn]] void give_up(const std::string& reason) {
    reporter_.end(state_, "ended as it diverged", trainer_);
    throw Error(Code::nonfinite, format("{}; lower optim.lr, lengthen optim.warmup_steps or set optim.grad_clip; {}",
                                        reason, world_.first() ? train::way_back(store_.folder()) : ""))
        .on(Scope::all_ranks);
  }

  // A model whose losses or weights are not finite is no result.
  void require_convergence() {
    const bool evaluated = !std::isnan(loss_of_last_);
    const bool bad_loss = evaluated ? !std::isfinite(loss_of_last_) : state_.skipped_in_row > 0;
    if (state_.step > 0 && state_.adam_step == 0)
      give_up(format("step {}: every step was skipped, as its loss or gradient was not finite", state_.step));
    if (trainer_.on_any_rank(bad_loss))
      give_up(format("step {}: the {} loss is not finite", state_.step, datasets_.val ? "validation" : "training"));
    if (!train::weights_are_finite(trainer_)) give_up(format("step {}: weights are not finite", state_.step));
  }

  void evaluate_now() {
    if (!datasets_.val) return;
    Evaluation result =
        evaluate(trainer_, *datasets_.val, config_.train.eval_batches,
                 datasets_.tokenizer ? &*datasets_.tokenizer : nullptr, [&](int64_t done, int64_t windows) {
                   reporter_.status(format("evaluating {}/{}", done, windows));
                   return !stop_requested() && !deadline_.passed();
                 });
    if (result.interrupted && !stopped()) {
      reporter_.warn(state_.step, format("step {}: --max-time cut the evaluation short; it is made up for when the run "
                                         "goes on",
                                         state_.step));
    }
    evaluation_cut_ = result.interrupted;
    if (result.interrupted) return;
    result.report.step = state_.step;
    loss_of_last_ = std::isfinite(result.report.loss) ? result.report.loss : kNotFinite;
    if (loss_of_last_ != kNotFinite && !(state_.best_val_loss <= result.report.loss) &&
        train::weights_are_finite(trainer_)) {
      state_.best_val_loss = result.report.loss;
      state_.best_step = state_.step;
    }
    reporter_.evaluation(result.report);
  }

  void sample_now() {
    if (!generator_) return;
    const train::Sampling sampling{.temperature = 0.8, .top_k = 200, .seed = static_cast<uint64_t>(config_.run.seed)};
    report::Sample sample{state_.step, config_.train.sample_prompt, {}};
    sample.text = generator_->complete(*datasets_.tokenizer, sample.prompt, config_.train.sample_tokens, sampling);
    reporter_.sample(std::move(sample));
  }

  // A save that fails (disk full) costs a checkpoint, not the run; the next interval tries again.
  void save_or_warn() {
    try {
      save();
    } catch (const Error& error) {
      if (error.code() != Code::io) throw;
      reporter_.warn(state_.step, format("step {}: no checkpoint was saved: {}", state_.step, error.what()));
    }
  }

  void save() {
    const double start = now_seconds();
    state_.finite_weights = train::weights_are_finite(trainer_);
    checkpoint::Snapshot snapshot = expected_;
    snapshot.state = state_;
    snapshot.tensors = checkpoint::slices_to_save(trainer_.store(), /*moments=*/true);
    report::CheckpointReport report;
    report.step = state_.step;
    report.path = store_.save(snapshot).string();
    for (const checkpoint::TensorSlice& slice : snapshot.tensors)
      report.bytes += slice.shape.count() * size_of(slice.local.dtype);
    report.seconds = now_seconds() - start;
    report.best = state_.best_step == state_.step;
    saved_step_ = state_.step;
    reporter_.checkpoint(report);
  }

  int finish(const std::string& outcome) {
    reporter_.end(state_, outcome, trainer_);
    return stopped() ? kStoppedBySignal : 0;
  }

  comm::World& world_;
  config::Config config_;
  SessionOptions options_;
  Deadline deadline_;
  plan::Machine machine_;
  measure::MemoryProbe memory_;
  data::Datasets datasets_;
  const checkpoint::Snapshot expected_;
  int64_t total_steps_;
  plan::RunPlan plan_;
  std::unique_ptr<device::Device> device_;
  comm::GpuTransport between_gpus_;
  std::unique_ptr<comm::World> gpu_world_;  // null: world_
  train::Trainer trainer_;
  int64_t accumulation_;
  checkpoint::CheckpointStore store_;
  measure::PeakTracker peak_;
  Reporter reporter_;
  const train::BatchSource batches_ = [this](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    datasets_.train->train_batch(sample, sequences, out);
    datasets_.train->prefetch(sample + sequences, sequences);
  };
  std::optional<train::Generator> generator_;
  checkpoint::TrainState state_;
  int64_t saved_step_ = -1;
  double loss_of_last_ = measure::kUnknown;  // validation loss of the last step; infinite when it is not finite
  bool evaluation_cut_ = false;              // the last one was
};

}  // namespace

int run_session(comm::World& world, const config::Config& config, const SessionOptions& options,
                std::string& plan_text) {
  const plan::Machine machine = plan::choose_machine(config, world);
  const std::string tuning_hash = plan::use_gemm_tuning(config, world, *plan::make_dry_device(machine));
  if (options.dry_run) {
    const int64_t vocab = data::planned_vocab(config);
    const PlanningWatch watch(world, config.model.n_layer);
    const plan::RunPlan plan = plan::plan_run(config, vocab, machine, true);
    plan_text = to_text(plan, config, machine);
    world.control().together([&] { plan::require_memory(plan, config, vocab, machine); });
    return 0;
  }
  plan::require_one_compute(world, machine);
  const Deadline deadline = options.max_seconds > 0 ? Deadline(options.max_seconds) : Deadline();
  std::optional<SignalGuard> signals;  // handlers belong to a process; ranks that are threads share those of the first
  if (world.first() || world.transport() != "threads") signals.emplace();
  // Where the vocabulary is known before there is a tokenizer, memory is asked for before the work of making one.
  if (config.data.tokenizer == "train" && !plan_together(world, config, config.data.vocab_size, machine))
    return kStoppedBySignal;
  std::optional<checkpoint::RunLock> run_lock, save_lock;
  world.control().together([&] {
    if (!world.first()) return;
    run_lock.emplace(config.run.dir);
    save_lock.emplace(checkpoint::RunLock::of_checkpoints(checkpoint_folder(config)));
  });
  data::Datasets datasets = open_run_data(world, config, machine, deadline);
  if (!datasets.train) {
    log::info("stopped while tokenizing; the same command goes on from here");
    return stopped_on_any(world) ? kStoppedBySignal : 0;
  }
  std::optional<plan::RunPlan> plan = plan_together(world, config, datasets.vocab, machine);
  if (!plan) return kStoppedBySignal;
  return Session(world, config, options, deadline, machine, tuning_hash, std::move(datasets), std::move(*plan)).run();
}

}  // namespace trainer::run
