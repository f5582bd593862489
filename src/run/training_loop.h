#pragma once
// TrainingLoop: the steps of a run, and between them evaluation, samples, checkpoints and requests.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "comm/gpu_transport.h"
#include "data/source.h"
#include "run/reporter.h"
#include "run/run_state.h"
#include "run/session.h"
#include "run/slow_ranks.h"
#include "run/tasks.h"
#include "run/tracer.h"
#include "setup/run_plan.h"
#include "train/generate.h"
#include "train/replay.h"

namespace trainer::run {

/// The parts of a run that are prepared before it allocates memory for the model.
struct OpenRun {
  setup::Machine machine;
  comm::GpuTransport between_gpus;
  std::string tuning_hash;  // hash of the tuning table in use; empty: none
  data::Datasets datasets;
  std::vector<Task> tasks;
  setup::RunPlan plan;
};

class TrainingLoop {
 public:
  /// Allocates the memory of the run. `world` must outlive the loop. Every rank constructs a loop.
  TrainingLoop(comm::World& world, const config::Config& config, const SessionOptions& options, OpenRun open);

  /// Runs all steps. Returns the exit status; see run_session().
  int run();

 private:
  /// Plans the memory and fills the model (fill_model()).
  void prepare();
  /// Forgets the losses in the resumed state that cannot be compared with those of this run, and logs it.
  void forget_what_differs(const Resumed& resumed);
  /// Opens the run's output files, and reports the start.
  void begin();
  /// Trains up to step `last`, or until a stop is requested. Returns false when --max-time has passed.
  bool train_until(int64_t last);
  /// Makes and reports one optimizer step. Returns false if a stop was requested between micro-steps, which discards
  /// the partial step.
  bool step();
  /// Prepares replays, and says what they cannot find.
  void prepare_replays();
  /// Lets replicas check each other before the step, if that is due.
  void replay_if_due(const train::StepWork& work);
  /// Compares the weights of replicas, before the step is saved.
  void check_replicas_if_due();
  /// Compares the ranks' own times at the end of a window of steps.
  void compare_ranks_if_due();
  /// If this loss proves the last checkpoint (run/divergence.h), records it; older checkpoints may then be deleted.
  void note_proof(double loss);
  /// Reports how the run ended, and returns the exit status. `in_time` is false if --max-time ended the run.
  int finish(bool in_time);

  /// Requests that any rank received since the last step, the same on all ranks.
  struct Requests {
    bool stop, save, time_is_up;
    bool peak;     // a measurement of the peak is due on rank 0
    bool writing;  // a background thread of any rank is still writing the checkpoint
  };
  Requests exchange_requests();
  bool stop_requested_on_any();
  bool is_due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool is_finished() const { return state_.step >= total_steps_; }

  bool is_evaluation_due() const;
  /// True if the resumed step was saved but not evaluated, because a signal or --max-time interrupted its evaluation.
  bool is_evaluation_missing();
  /// Evaluates the validation data. Returns false if a stop or --max-time interrupted the evaluation.
  bool evaluate_now();
  bool are_tasks_due() const;
  /// The same of tasks, as far as metrics.jsonl has it.
  bool are_tasks_missing();
  /// Answers the tasks' questions. Returns false if a stop or --max-time interrupted them.
  bool answer_now();
  /// Records the step of `state` as the best one if what checkpoint.best names is the lowest: a validation loss, or
  /// 1 − a task's score.
  void note_best(checkpoint::TrainState& state) const;
  /// Returns the task that selects the best checkpoint; null if a validation set does.
  const Task* followed_task() const;
  /// Returns the name of the validation set or task that selects it; empty for a set without a name.
  std::string followed_set() const;
  /// Returns the evaluated_data() of that set, or the task's hash.
  std::string followed_data() const;
  void sample_now();

  bool is_save_due();
  /// Waits for the previous save and saves this step; in the background, only starts to save it.
  void save(bool background);
  /// Saves, but only warns if that fails, as on a full disk: the run continues and saves again after the next interval.
  /// A background save that fails is repeated once between steps, and a second failure ends the run.
  void save_or_warn();
  void save_last_step();
  /// Runs a part of a save. If a background save fails, warns and starts it again between steps.
  void attempt(const std::function<void()>& part);
  void proceed_with_save();
  /// Waits for the save in progress, if there is one.
  void end_save();

  void warn_of_skip(const train::Trainer::Outcome& outcome);
  /// Ends the run with an error on all ranks; saved checkpoints stay as they are.
  [[noreturn]] void give_up(const std::string& reason);
  /// Ends the run with an error when losses or weights are not finite.
  void require_convergence();
  /// True if no token file was truncated since it was opened. The trainer polls this between micro-steps.
  bool data_is_whole() const;
  /// If one was, saves the last complete step and ends the run with an error.
  void require_whole_data();

  comm::World& world_;
  config::Config config_;
  SessionOptions options_;
  OpenRun open_;
  MemoryProbe memory_;
  const checkpoint::Snapshot header_;  // the part that all checkpoints of the run have in common
  int64_t total_steps_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<comm::World> gpu_world_;  // for communication between GPUs; null: use world_
  train::Trainer trainer_;
  /// The save in progress, or the last one.
  struct Save {
    checkpoint::Snapshot snapshot;
    std::vector<std::byte> copies;  // copies of the tensors, for a background save
    bool background = false;
    double began = 0;
    report::CheckpointReport report;
  } save_;
  checkpoint::CheckpointStore store_;
  setup::PeakTracker peak_;
  Reporter reporter_;
  Tracer tracer_;
  SlowRanks slow_ranks_;
  std::optional<train::Replay> replay_;  // empty: off
  bool has_replayed_ = false;            // in this process
  bool has_stepped_ = false;             // in this process
  const train::BatchSource batches_;
  std::optional<train::Generator> generator_;
  std::optional<Respondent> respondent_;  // empty: no tasks
  std::string mixture_table_;             // table of the sources for the whole run, logged at the start
  checkpoint::TrainState state_;
  bool asynchronous_ = false;        // checkpoint.async is set and the memory suffices for it
  int64_t saved_step_ = -1;          // the last step that was saved or is being saved
  std::filesystem::path saved_;      // the checkpoint of saved_step_
  std::filesystem::path proven_;     // the last checkpoint that a normal step followed; empty: none
  bool last_was_spike_ = false;      // the last step was skipped, with finite loss and gradient
  double score_of_last_ = kUnknown;  // the followed task's, after the last step
  double loss_of_last_ = kUnknown;   // validation loss of the last step; infinity if it is not finite
};

}  // namespace trainer::run
