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
#include "run/deadline.h"
#include "run/reporter.h"
#include "run/session.h"
#include "run/tracer.h"
#include "setup/run_plan.h"
#include "train/generate.h"

namespace trainer::run {

/// What is known and open before a run takes memory for its model.
struct OpenRun {
  setup::Machine machine;
  comm::GpuTransport between_gpus;
  std::string tuning_hash;  // hash of the tuning table in use; empty: none
  data::Datasets datasets;
  setup::RunPlan plan;
};

class TrainingLoop {
 public:
  /// Takes the memory of the run. The world outlives it. Every rank makes one.
  TrainingLoop(comm::World& world, const config::Config& config, const SessionOptions& options,
               const Deadline& deadline, OpenRun open);

  /// The whole run. Returns its exit status; see run_session().
  int run();

 private:
  /// Fills the model: from its newest checkpoint, where there is one.
  void prepare();
  /// Opens what the run writes, and reports its start.
  void begin();
  /// Trains up to step `last`, or until a stop is requested. Returns false when --max-time has passed.
  bool train_until(int64_t last);
  /// One optimizer step and its report. False when a stop came between micro-steps: the partial step is discarded.
  bool step();
  /// Notes that the last checkpoint was followed by a normal step, if that is true; older ones may be deleted then.
  void note_proof(double loss);
  /// Reports how the run ended, and returns its exit status. `in_time` is false when --max-time ended it.
  int finish(bool in_time);

  /// Requests are what reached any rank since the last step; all ranks act alike.
  struct Requests {
    bool stop, save, time_is_up;
    bool peak;     // the first rank has time to measure it
    bool writing;  // a thread of a rank writes the checkpoint that is being saved
  };
  Requests exchange_requests();
  bool stop_requested_on_any();
  bool is_due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool is_finished() const { return state_.step >= total_steps_; }

  bool is_evaluation_due() const;
  /// A signal cut the evaluation of the resumed step short; the step itself was saved.
  bool is_evaluation_missing();
  /// Returns false when a stop or --max-time cut the evaluation short.
  bool evaluate_now();
  /// Makes the step of `state` the best of those with a checkpoint, if it has the lowest validation loss.
  void note_best(checkpoint::TrainState& state) const;
  /// Returns the name of the validation set that is followed; empty for a set without a name.
  std::string followed_set() const;
  void sample_now();

  bool is_save_due();
  /// Saves this step. In the background it only begins to, after the save before has ended.
  void save(bool background);
  /// A save that fails (disk full) costs a checkpoint, not the run; the next interval tries again. In the background it
  /// is repeated between steps, once: the second failure ends the run.
  void save_or_warn();
  void save_last_step();
  /// Runs a part of a save. If it fails in the background, warns and begins the save again, between steps.
  void attempt(const std::function<void()>& part);
  void proceed_with_save();
  /// Waits for the save in progress, if there is one.
  void end_save();

  void warn_of_skip(const train::Trainer::Outcome& outcome);
  /// Ends the run with an error on all ranks; saved checkpoints stay as they are.
  [[noreturn]] void give_up(const std::string& reason);
  /// Ends the run with an error when losses or weights are not finite.
  void require_convergence();
  /// Ends the run where a token file was cut short under it, after saving the last step that was completed before.
  void require_whole_data();

  comm::World& world_;
  config::Config config_;
  SessionOptions options_;
  Deadline deadline_;
  OpenRun open_;
  MemoryProbe memory_;
  const checkpoint::Snapshot header_;  // what its checkpoints have in common
  int64_t total_steps_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<comm::World> gpu_world_;  // null: world_
  train::Trainer trainer_;
  /// The save in progress, or the last one.
  struct Save {
    checkpoint::Snapshot snapshot;
    std::vector<std::byte> copies;  // of its tensors, where it is in the background
    bool background = false;
    double began = 0;
    report::CheckpointReport report;
  } save_;
  checkpoint::CheckpointStore store_;
  setup::PeakTracker peak_;
  Reporter reporter_;
  Tracer tracer_;
  const train::BatchSource batches_;
  std::optional<train::Generator> generator_;
  std::string mixture_table_;  // of the whole run, for its start
  checkpoint::TrainState state_;
  bool asynchronous_ = false;       // checkpoint.async, where the memory suffices
  int64_t saved_step_ = -1;         // or being saved
  std::filesystem::path saved_;     // the checkpoint of saved_step_
  std::filesystem::path proven_;    // the last checkpoint that a normal step followed; empty: none
  double loss_of_last_ = kUnknown;  // validation loss of the last step; infinite when it is not finite
};

}  // namespace trainer::run
