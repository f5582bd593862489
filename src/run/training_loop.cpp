#include "run/training_loop.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/log.h"
#include "checkpoint/folder.h"
#include "config/context.h"
#include "config/resolve.h"
#include "data/chat.h"
#include "run/divergence.h"
#include "run/evaluate.h"
#include "run/planning.h"
#include "run/run_data.h"
#include "run/run_folder.h"
#include "run/schedule.h"
#include "run/signals.h"
#include "run/start_report.h"
#include "setup/offload_memory.h"
#include "train/soundness.h"
#include "train/spikes.h"

namespace trainer::run {
namespace {

constexpr double kNotFinite = std::numeric_limits<double>::infinity();

/// Calls fn(stream) for all token files of a run.
template <typename F>
void each_stream(const data::Datasets& datasets, F&& fn) {
  for (const data::NamedDataset& set : datasets.train->sources()) fn(set.dataset.stream());
  for (const data::NamedDataset& set : datasets.val) fn(set.dataset.stream());
}

/// Returns a probe that starts before any rank allocates tensors: ranks may be threads of this process.
MemoryProbe probe_before_all(comm::World& world) {
  const MemoryProbe probe;
  world.control().barrier();
  return probe;
}

}  // namespace

TrainingLoop::TrainingLoop(comm::World& world, const config::Config& config, const SessionOptions& options,
                           OpenRun open)
    : world_(world),
      config_(config),
      options_(options),
      open_(std::move(open)),
      memory_(probe_before_all(world)),
      header_(snapshot_header(config, open_.datasets, open_.machine.compute, open_.tuning_hash)),
      total_steps_(config::total_steps(config)),
      device_(setup::make_device(open_.machine)),
      gpu_world_(comm::gpu_world(world, *device_, open_.between_gpus)),
      trainer_(*device_, gpu_world_ ? *gpu_world_ : world, config, open_.datasets.vocab, open_.machine.compute),
      store_(checkpoint_folder(config),
             {config.checkpoint.keep, config.checkpoint.keep_every, config.checkpoint.keep_best}, system_calls(),
             &world),
      peak_(setup::make_peak(*device_, open_.machine.compute, config_, world)),
      reporter_(config_, open_.plan, open_.machine, *open_.datasets.train, memory_, peak_, world.first()),
      tracer_(world, config_, trainer_),
      slow_ranks_(world, config_, *device_),
      batches_([&data = *open_.datasets.train](int64_t sample, int64_t sequences, data::TokenBatch& out) {
        data.train_batch(sample, sequences, out);
        data.prefetch(sample + sequences, sequences);
      }) {}

int TrainingLoop::run() {
  prepare();
  const bool lacks_evaluation = trainer_.scalars().is_true_on_any_rank(is_evaluation_missing());
  const bool lacks_tasks = trainer_.scalars().is_true_on_any_rank(are_tasks_missing());
  if (is_finished() && !lacks_evaluation && !lacks_tasks) {
    require_convergence();
    log::info("the run is finished: {} of {} steps are done; {}", state_.step, total_steps_,
              reporter_.restore_report(state_.step) ? "its report was missing and has been written"
                                                    : "no files were changed");
    reporter_.repeat_summary(state_.step);
    return 0;
  }
  begin();
  if (lacks_evaluation && !evaluate_now()) return finish(false);
  if (lacks_tasks && !answer_now()) return finish(false);
  if (is_finished()) {
    require_convergence();
    return finish(true);
  }
  reporter_.show_progress(state_.step);
  const int64_t last = options_.max_steps > 0 ? std::min(total_steps_, state_.step + options_.max_steps) : total_steps_;
  tracer_.expect_steps(state_.step + 1, last);
  bool in_time = true;
  try {
    in_time = train_until(last);
  } catch (const Error& error) {  // a single rank can save without the others, and the failed step changed nothing
    if (error.code() == Code::data && world_.size() == 1) save_last_step();
    throw;
  }
  require_whole_data();
  if (is_finished()) require_convergence();
  save_last_step();
  if (is_finished()) sample_now();
  return finish(in_time);
}

bool TrainingLoop::train_until(int64_t last) {
  while (state_.step < last) {
    if (!step()) break;
    check_replicas_if_due();
    if ((!is_evaluation_due() || evaluate_now()) && are_tasks_due()) answer_now();
    if (is_due(config_.train.sample_interval) && !is_finished()) sample_now();
    const Requests requests = exchange_requests();
    if (requests.stop) break;
    if (requests.peak) peak_.sample();
    if (store_.is_saving() && !requests.writing) proceed_with_save();
    if (state_.step < last && (requests.save || is_save_due())) save_or_warn();
    compare_ranks_if_due();
    if (requests.time_is_up) return false;
  }
  return true;
}

void TrainingLoop::prepare() {
  {
    const PlanningWatch watch(world_, config_.model.n_layer);
    trainer_.plan();
  }
  std::vector<data::MixturePhase> phases;
  if (const auto resumed = fill_model(trainer_, checkpoint_folder(config_), header_)) {
    phases = resumed->phases;
    state_ = resumed->state;
    loss_of_last_ = state_.val_loss;
    saved_step_ = state_.step;
    saved_ = resumed->folder;
    if (state_.proven_step >= 0) proven_ = saved_.parent_path() / checkpoint::step_name(state_.proven_step);
    total_steps_ = config::total_steps(config_, state_.step, state_.tokens_seen);
    forget_what_differs(*resumed);
  }
  const int64_t samples = state_.samples_seen + (total_steps_ - state_.step) * config_.train.global_batch;
  mixture_table_ = continue_mixture(world_, config_, *open_.datasets.train, phases, state_.samples_seen, samples);
}

void TrainingLoop::forget_what_differs(const Resumed& resumed) {
  const bool validates = !open_.datasets.val.empty() || followed_task() != nullptr,
             other_set = state_.best_set != followed_set();
  const bool other_data = state_.best_data != followed_data();
  if (state_.best_step >= 0 && validates && (other_set || other_data)) {
    log::info(
        "checkpoint.best: the best checkpoint so far (step {}, {} {:.4f}) was selected with {} and is "
        "ignored; the best one is selected again, from the next evaluation on",
        state_.best_step, followed_task() ? "value" : "validation loss", state_.best_val_loss,
        other_set         ? "a different validation set"
        : followed_task() ? "different questions or another metric"
                          : "different validation data or windows");
    state_.best_step = -1;
    state_.best_val_loss = kUnknown;
  }
  if (!resumed.other_steps) return;
  if (!state_.losses.empty() || !state_.norms.empty())
    log::info(
        "train.skip_sigma: the losses and gradient norms of earlier steps are of different data or batches and are "
        "ignored");
  state_.losses.clear();
  state_.norms.clear();
  state_.loss = kUnknown;
}

void TrainingLoop::begin() {
  if (setup::writes_samples(config_) && trainer_.replica() == 0) generator_.emplace(trainer_);
  if (!open_.tasks.empty()) respondent_.emplace(trainer_, open_.tasks);
  reporter_.open(state_);
  if (world_.first()) write_run_files(config_, header_.config_toml, header_.tokenizer);
  report::StartReport start = start_report(config_, open_.datasets, open_.plan, open_.machine, world_, trainer_);
  start.step = state_.step;
  start.total_steps = total_steps_;
  start.data_position = state_.samples_seen;
  if (const data::Mixture* mixture = open_.datasets.train->mixture())
    start.source_samples = mixture->samples_before(state_.samples_seen);
  start.environment.version = options_.version;
  start.environment.commit = options_.commit;
  start.config_toml = header_.config_toml;
  std::vector<std::string> notes = start_notes(open_.between_gpus, trainer_);
  if (world_.first()) notes.push_back(setup::offload_note(trainer_, config_, open_.datasets.vocab, open_.machine));
  notes.push_back(config::context_line(config_));
  notes.push_back(mixture_table_);
  if (state_.step == 0 && world_.local_size() < world_.size())
    notes.emplace_back(
        "several hosts: `mpirun -np N trainer verify --config FILE` checks them and this layout in a minute");
  reporter_.start(start, world_.transport(), notes);
  prepare_replays();
  if (!config_.checkpoint.async) return;
  asynchronous_ = !trainer_.scalars().is_true_on_any_rank(!open_.plan.memory.contains(setup::kSnapshotMemory));
  if (!asynchronous_)
    reporter_.warn(state_.step,
                   "checkpoint.async is ignored: the copy of weights and optimizer state that it requires "
                   "does not fit in host memory; training will wait for each checkpoint");
}

bool TrainingLoop::step() {
  const train::StepWork work{
      .step = state_.step + 1,
      .first_sample = state_.samples_seen,
      .adam_step = state_.adam_step + 1,
      .micro_batches = trainer_.accumulation(),
      .lr = learning_rate(config_.optim, total_steps_, state_.step + 1),
      .unmasked_tokens = open_.datasets.train->counted(state_.samples_seen, config_.train.global_batch),
      .losses = state_.losses,
      .norms = state_.norms};
  replay_if_due(work);
  trainer_.meter().reset();  // discard the counts of evaluations, samples and saves
  tracer_.before_step(work.step);
  const double start = now_seconds();
  train::Trainer::Outcome outcome;
  {
    const TraceScope traced(trainer_.meter().trace, "step", work.step);
    slow_ranks_.inject();
    outcome = trainer_.step(work, batches_, [this] { return stop_requested() || !data_is_whole(); });
  }
  if (outcome.interrupted) return false;
  const double seconds = now_seconds() - start;

  if (!outcome.skipped) note_proof(outcome.loss);
  if (config_.train.skip_sigma > 0) {
    train::remember(state_.losses, outcome.loss, config_.train.skip_window);
    train::remember(state_.norms, outcome.norm.norm, config_.train.skip_window);
  }
  state_.step = work.step;
  state_.samples_seen += config_.train.global_batch;
  state_.tokens_seen += config_.train.global_batch * config_.model.seq_len;
  if (!outcome.skipped) state_.adam_step = work.adam_step;
  state_.skipped_in_row = outcome.skipped ? state_.skipped_in_row + 1 : 0;
  last_was_spike_ = outcome.spike.has_value();
  loss_of_last_ = score_of_last_ = kUnknown;
  std::optional<train::ExpertStatistics> experts;
  const bool first = !std::exchange(has_stepped_, true);
  if (config_.model.n_expert > 0 && (first || is_due(config_.log.interval) || is_finished()))
    experts = trainer_.expert_statistics();
  reporter_.step(work, outcome, seconds, state_, trainer_, std::move(experts));
  slow_ranks_.add(seconds * 1e3, outcome.phase_ms.data, trainer_.meter());
  tracer_.after_step(work.step);
  if (outcome.skipped) warn_of_skip(outcome);
  return true;
}

void TrainingLoop::note_proof(double loss) {
  if (saved_step_ == state_.step && proves(loss, state_, open_.datasets.vocab)) {
    state_.proven_step = saved_step_;
    proven_ = saved_;
    if (world_.first()) store_.remove_old(saved_step_);
  }
  state_.loss = loss;
}

TrainingLoop::Requests TrainingLoop::exchange_requests() {
  double flags[] = {stop_requested() ? 1.0 : 0.0, take_save_request() ? 1.0 : 0.0,
                    options_.deadline.has_passed() ? 1.0 : 0.0, world_.first() && peak_.is_due() ? 1.0 : 0.0,
                    store_.is_writing() ? 1.0 : 0.0};
  trainer_.scalars().max_over_ranks(flags);
  return {flags[0] > 0, flags[1] > 0, flags[2] > 0, flags[3] > 0, flags[4] > 0};
}

bool TrainingLoop::stop_requested_on_any() { return trainer_.scalars().is_true_on_any_rank(stop_requested()); }

bool TrainingLoop::is_evaluation_due() const {
  return is_due(config_.train.eval_interval) || state_.step == total_steps_;
}

bool TrainingLoop::is_evaluation_missing() {
  if (!world_.first() || open_.datasets.val.empty() || state_.step == 0 || !is_evaluation_due()) return false;
  if (!config_.log.jsonl) return std::isnan(loss_of_last_);
  const std::vector<report::EvalReport>& evals = reporter_.earlier(state_.step).evals;
  const auto eval = std::ranges::find(evals, state_.step, &report::EvalReport::step);
  if (eval == evals.end()) return true;
  if (const std::optional<double> loss = eval->loss_of(followed_set()))
    loss_of_last_ = std::isfinite(*loss) ? *loss : kNotFinite;
  return false;
}

bool TrainingLoop::evaluate_now() {
  if (open_.datasets.val.empty()) return true;
  const TraceScope traced(trainer_.meter().trace, "evaluation");
  Evaluation result = evaluate_sets(
      trainer_, open_.datasets.val, open_.datasets.followed, {.groups = config_.train.eval_batches},
      open_.datasets.tokenizer ? &*open_.datasets.tokenizer : nullptr, [&](int64_t done, int64_t windows) {
        reporter_.status(format("evaluating {}/{}", done, windows));
        return !stop_requested() && !options_.deadline.has_passed();
      });
  if (result.interrupted) {
    if (!stop_requested_on_any())
      reporter_.warn(
          state_.step,
          format("step {}: --max-time interrupted the evaluation; it is repeated when the run resumes", state_.step));
    return false;
  }
  result.report.step = state_.step;
  loss_of_last_ = std::isfinite(result.report.loss) ? result.report.loss : kNotFinite;
  if (saved_step_ == state_.step) note_best(state_);
  reporter_.evaluation(result.report);
  return true;
}

void TrainingLoop::note_best(checkpoint::TrainState& state) const {
  const double value = followed_task() ? 1 - score_of_last_ : loss_of_last_;
  if (!std::isfinite(value) || state.best_val_loss <= value || !state.is_sound()) return;
  state.best_val_loss = value;
  state.best_step = state.step;
  state.best_set = followed_set();
  state.best_data = followed_data();
}

bool TrainingLoop::are_tasks_due() const {
  return !open_.tasks.empty() && (is_due(config_.train.task_interval) || state_.step == total_steps_);
}

bool TrainingLoop::are_tasks_missing() {
  if (!world_.first() || state_.step == 0 || !are_tasks_due() || !config_.log.jsonl) return false;
  return std::ranges::count(reporter_.earlier(state_.step).tasks, state_.step, &report::TasksReport::step) == 0;
}

bool TrainingLoop::answer_now() {
  const TraceScope traced(trainer_.meter().trace, "tasks");
  auto report = answer_tasks(*respondent_, open_.tasks, [&](const std::string& name, int64_t done, int64_t all) {
    reporter_.status(format("{}: {}/{} questions", name, done, all));
    return !stop_requested() && !options_.deadline.has_passed();
  });
  if (!report) {
    if (!stop_requested_on_any())
      reporter_.warn(
          state_.step,
          format("step {}: --max-time interrupted the tasks; they are repeated when the run resumes", state_.step));
    return false;
  }
  report->step = state_.step;
  if (const Task* task = followed_task()) score_of_last_ = report->find(task->settings.name)->score;
  if (saved_step_ == state_.step) note_best(state_);
  reporter_.tasks(*report);
  return true;
}

const Task* TrainingLoop::followed_task() const {
  const std::string& best = config_.checkpoint.best;
  const auto found = std::ranges::find(open_.tasks, best, [](const Task& task) { return task.settings.name; });
  return best.empty() || found == open_.tasks.end() ? nullptr : &*found;
}

std::string TrainingLoop::followed_set() const {
  if (const Task* task = followed_task()) return task->settings.name;
  return open_.datasets.val.empty() ? "" : open_.datasets.val[open_.datasets.followed].name;
}

std::string TrainingLoop::followed_data() const {
  if (const Task* task = followed_task()) return task->hash;
  if (open_.datasets.val.empty()) return "";
  return evaluated_data(config_, open_.datasets.val[open_.datasets.followed], {.groups = config_.train.eval_batches});
}

void TrainingLoop::sample_now() {
  if (!generator_) return;
  const TraceScope traced(trainer_.meter().trace, "sample");
  const train::Sampling sampling{.temperature = 0.8, .top_k = 200, .seed = static_cast<uint64_t>(config_.run.seed)};
  report::Sample sample{state_.step, config_.train.sample_prompt, {}};
  try {
    const data::Tokenizer& tokenizer = *open_.datasets.tokenizer;
    train::Prompt prompt = sample.prompt;
    if (config::has_conversations(config_.data))  // a user's message
      prompt = data::ChatEncoder(data::choose_chat_format("auto", tokenizer), tokenizer)
                   .prompt({{.content = sample.prompt}});
    sample.text = generator_->complete(tokenizer, prompt, config_.train.sample_tokens, sampling, stop_requested);
  } catch (const Error& error) {
    if (error.code() != Code::nonfinite) throw;
    return reporter_.warn(state_.step, format("step {}: no sample: {}", state_.step, error.what()));
  }
  reporter_.sample(std::move(sample));
}

void TrainingLoop::warn_of_skip(const train::Trainer::Outcome& outcome) {
  const std::string why =
      outcome.spike ? format(
                          "{} {:.6g} exceeds {:.6g}, which is train.skip_sigma = {} standard deviations above the mean "
                          "of the last steps",
                          outcome.spike->what, outcome.spike->value, outcome.spike->limit, config_.train.skip_sigma)
                    : format("{} is not finite", outcome.norm.is_finite() ? "the loss" : outcome.norm.bad_tensor);
  const std::string message = format("step {}: {}, the update was skipped ({} in a row, {} allowed)", state_.step, why,
                                     state_.skipped_in_row, config_.train.max_skipped_steps);
  const std::string hint = format("; `trainer report {} --step {}` prints its samples", config_.run.dir, state_.step);
  reporter_.warn(state_.step, message + (config_.log.jsonl ? hint : ""));
  if (state_.skipped_in_row > config_.train.max_skipped_steps) give_up(message);
}

void TrainingLoop::give_up(const std::string& reason) {
  end_save();
  reporter_.end(state_, "ended because training diverged", trainer_);
  throw Error(Code::nonfinite, format("{}; lower optim.lr, lengthen optim.warmup_steps or set optim.grad_clip; {}",
                                      reason, suggest_resume(proven_, store_.folder())))
      .on(Scope::all_ranks);
}

void TrainingLoop::require_convergence() {
  // After a resume, only rank 0 may know the result of an earlier evaluation.
  const bool evaluated = trainer_.scalars().is_true_on_any_rank(!std::isnan(loss_of_last_));
  const bool bad_loss = evaluated ? loss_of_last_ == kNotFinite : state_.skipped_in_row > 0 && !last_was_spike_;
  if (state_.step > 0 && state_.adam_step == 0)
    give_up(format("step {}: every step was skipped because its loss or gradient was not finite", state_.step));
  if (trainer_.scalars().is_true_on_any_rank(bad_loss))
    give_up(format("step {}: the {} loss is not finite", state_.step,
                   open_.datasets.val.empty() ? "training" : "validation"));
  if (!train::weights_are_finite(trainer_)) give_up(format("step {}: weights are not finite", state_.step));
}

bool TrainingLoop::data_is_whole() const {
  bool whole = true;
  each_stream(open_.datasets, [&](const data::TokenStream& stream) { whole = whole && stream.is_whole(); });
  return whole;
}

void TrainingLoop::require_whole_data() {
  if (!trainer_.scalars().is_true_on_any_rank(!data_is_whole())) return;
  save_last_step();
  world_.control().run_on_all_ranks(
      [&] { each_stream(open_.datasets, [](const data::TokenStream& stream) { stream.require_whole(); }); });
}

int TrainingLoop::finish(bool in_time) {
  tracer_.end();
  const bool stopped = stop_requested_on_any();
  const std::string outcome = stopped         ? format("stopped by {}", signal_name(stop_signal()))
                              : !in_time      ? "stopped at --max-time"
                              : is_finished() ? "finished"
                                              : "stopped after --max-steps";
  reporter_.end(state_, outcome, trainer_);
  const std::string table = mixture_table(config_, *open_.datasets.train, state_.samples_seen);
  if (world_.first() && !table.empty()) log::info("{}", table);
  return stopped ? kStoppedBySignal : 0;
}

}  // namespace trainer::run
