#pragma once
// Trainer: a model with its gradients, the optimizer state and the step. On a dry device it plans a run: the same code
// counts memory and FLOPs without computing.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "offload/engine.h"
#include "optim/make.h"
#include "parallel/routing.h"
#include "params/grad_sink.h"
#include "sharding/pipeline.h"
#include "train/micro_graphs.h"
#include "train/model_runner.h"

namespace trainer::train {

/// The parameters of a step, fixed at its start.
struct StepWork {
  int64_t step = 0;          // 1-based
  int64_t first_sample = 0;  // samples seen before the step
  int64_t adam_step = 0;     // number of this update, 1-based (skipped steps are not counted)
  int64_t micro_batches = 0;
  double lr = 0;
  /// The number of targets that count in the loss, in all micro-batches and replicas; 0: all. Gradients are divided by
  /// this number, so it must be known before the first micro-batch.
  int64_t unmasked_tokens = 0;
  /// Losses and gradient norms of earlier steps, by which spikes are recognized (train.skip_sigma).
  std::span<const double> losses = {}, norms = {};
};

/// The choices of a step's routers, of all ranks.
struct ExpertStatistics {
  double load_max = 0;     // rows of the expert with the most, relative to the mean over its layer's experts
  int64_t load_layer = 0;  // the layer of that expert, counted from 0
  int64_t idle = 0;        // pairs of a layer and an expert without rows
  int64_t rounds = 0;      // in which rows were exchanged between ranks, at most; 0: no exchange
  int64_t rounds_layer = 0;
  double entropy = 0;  // mean of −Σ p·ln p over rows and layers, p: probabilities of the experts
  std::vector<std::vector<int64_t>> counts;  // by layer with experts: how often each expert was chosen
};

/// Copies sequences [first_sample, first_sample + sequences) of the training order to `out`.
using BatchSource = std::function<void(int64_t first_sample, int64_t sequences, data::TokenBatch& out)>;

/// Returns what receives the operations of actions of a kind, on a dry device; a step runs `count` of them. The last
/// call of a step, for an action without passes, is for what follows the last action: reductions, norm and update.
using ProgramRecorders = std::function<Recorder*(const sharding::ActionKind& kind, int64_t count)>;

/// The work of an update on one rank: FLOPs of GEMMs, bytes of memory traffic, and bytes sent to other ranks.
struct UpdateCost {
  double flops = 0, bytes = 0, sent = 0;
};

class Trainer : public ModelRunner {
 public:
  /// As ModelRunner, with memory for gradients and optimizer state.
  Trainer(device::Device& device, comm::World& world, const config::Config& config, int64_t vocab, DType compute,
          std::optional<sharding::ModelSharding> sharding = {});

  /// Records the programs of training and evaluation and allocates their memory. Must be called before the first step.
  /// `recorders` receive the operations of training.
  void plan(const ProgramRecorders& recorders = {});

  /// Runs one optimizer step over micro_batches · micro_batch sequences per replica, with at most accumulation()
  /// micro-batches; with several stages, with exactly that many. If the gradient is not finite, or the loss or the
  /// gradient norm is a spike, the update is skipped. If `stop` returns true on any rank between micro-steps, the
  /// partial step is discarded and `interrupted` is set; with several stages, `stop` is called before the first one
  /// only, since waiting for each other's answer would serialize them.
  struct Outcome {
    double loss = 0;                             // mean over the step's unmasked tokens, without the z-loss
    double z_loss = 0;                           // the same mean of the z-loss; 0 without train.z_loss
    double balance_loss = 0, router_z_loss = 0;  // means over all rows and layers with experts, without coefficients
    params::GradNorm norm;
    bool skipped = false;  // loss or gradient not finite, or a spike: no update was made
    /// Why a step with finite loss and gradient was skipped: the value and the limit that it exceeds (spikes.h).
    struct Spike {
      std::string_view what;
      double value, limit;
    };
    std::optional<Spike> spike;
    bool interrupted = false;
    double visible_share = 1;  // visible share of the causal pairs of query and key in this replica's sequences
    /// Mean of the seconds in which a rank waits for other stages, over the ranks that have losses of different rows,
    /// of all stages: for messages, and after its list for the stage that ends last. NaN with one stage, and on GPUs,
    /// where the host does not wait.
    double bubble = kUnknown;
    PhaseMs phase_ms;
  };
  Outcome step(const StepWork& work, const BatchSource& batches, const std::function<bool()>& stop = {});

  /// The two halves of step(): losses, gradients and their norm; and the update, or why there is none. The second must
  /// follow the first.
  Outcome gradients(const StepWork& work, const BatchSource& batches);
  void update(const StepWork& work, Outcome& outcome);

  /// Computes the step's first micro-batch of replica `of` on this replica: passes of the step, without the sums that
  /// follow its last micro-batch. Returns on each rank the bits of its terms of the loss, and the fingerprints of its
  /// gradients in the order of store().params(). Changes neither weights nor the step that follows (train/replay.h).
  /// Collective over the ranks of a replica.
  std::vector<uint64_t> replay(const StepWork& work, int64_t of, const BatchSource& batches);

  /// Returns the statistics of the last step of a model with experts. Collective over all ranks.
  ExpertStatistics expert_statistics();
  /// Returns what steers and counts the choices of a model with experts; null without.
  parallel::Routing* routing() { return routing_ ? &*routing_ : nullptr; }

  /// A hash of the experts that a layer's router chose for this rank's rows in the last step.
  struct ChoiceHash {
    int64_t first_row = 0;  // this rank's first row in the replica's micro-batch
    uint64_t choices = 0;   // 0: the layer is on a different rank, or the step's choices are not compared
  };
  /// Returns the hashes of all layers with experts, set every debug.check_replicas_every steps; empty without that key.
  std::span<const ChoiceHash> choice_hashes() const { return choice_hashes_; }

  int64_t accumulation() const { return config_.train.global_batch / (micro_batch() * replicas()); }
  /// Returns the communication of one step, as plan() counted it; the meter of real steps is compared with it.
  const CommBytes& comm_bytes_per_step() const { return comm_bytes_per_step_; }
  /// Returns the work of an update, as plan() counted it.
  const UpdateCost& update_cost() const { return update_cost_; }
  /// Returns the communication of the last step, given its plan, with what experts exchanged beyond balanced routing.
  CommBytes expected_comm_bytes(CommBytes planned) const;
  /// Returns the wire bytes that a meter counted, by axis and operation name, without control messages.
  CommBytes comm_bytes(const std::map<CommKey, CommCount>& counts) const;

  /// Returns the graphs of micro-steps; after plan(), those of training.
  const MicroGraphs& graphs() const { return *graphs_; }

  /// Returns the offload engine; null if the optimizer state is in device memory.
  offload::Engine* offload() const { return offload_; }

 private:
  void plan_training(const ProgramRecorders& recorders);
  /// Begins to count what routers choose in a step of `rows` token rows.
  void begin_routing(int64_t step, int64_t rows);
  /// Makes every choice of experts be added to choice_hashes_, in steps whose ranks will be compared.
  void hash_choices();
  /// Sets the means of the routers' terms. Collective.
  void end_routing(int64_t rows, Outcome& outcome);
  /// If the first and the last stage have a table each, makes them add their gradients.
  void share_table();
  /// Returns the work of an update that `meter_` counted after it had counted `before`.
  UpdateCost cost_of_update(const std::map<CommKey, CommCount>& before) const;
  class PhaseClock;
  // The halves of step(), which charge one clock.
  void gradients(const StepWork& work, const BatchSource& batches, const std::function<bool()>& stop, Outcome& outcome,
                 PhaseClock& clock);
  void update(const StepWork& work, Outcome& outcome, PhaseClock& clock);
  /// Returns the position in the training order of this rank's micro-batch number `micro` in the step. The micro-batch
  /// after the last one is the first one of the next step.
  int64_t first_sample(const StepWork& work, int64_t micro) const;
  /// Draws a micro-batch into host_, and sorts its rows into host_sorted_.
  void draw(int64_t first_sample, const BatchSource& batches);
  /// Prefetches a micro-batch while the device is busy.
  void draw_ahead(int64_t first_sample, const BatchSource& batches);
  /// Sets how many tokens of the step count in its loss, on the device.
  void set_loss_scale(int64_t tokens);
  /// Copies this rank's micro-batch to the device.
  parallel::Batch load(const StepWork& work, int64_t micro, const BatchSource& batches);
  bool has_stages() const { return sharding_.stages.count > 1; }
  /// Returns the seconds that the meter counted in which messages of other stages were waited for.
  double seconds_waited() const;
  /// Returns the number of a micro-batch's memory: with several stages, each has its own.
  int64_t memory_of(int64_t micro) const { return has_stages() ? micro : 0; }
  /// Returns the batch of a pass, as load() copies it.
  parallel::Batch training_batch(int64_t micro);
  /// An action of actions_, and its kind in the step.
  struct Run {
    size_t action = 0;
    sharding::ActionKind kind;
  };
  /// Runs an action on its micro-batch, with a graph if there is one.
  void run(Exec& ex, const Run& of, const parallel::Batch& batch, PhaseClock& clock);
  /// Returns the step's update with the scalars of the first rank.
  optim::Update agreed_update(const StepWork& work, const params::GradNorm& norm);
  /// Returns why the step is a spike; empty if it is none. The same on every rank.
  std::optional<Outcome::Spike> spike_of(const StepWork& work, const Outcome& outcome) const;
  /// Launches the action's operators. `clock` is charged with the forward pass; null while a graph is captured.
  void launch(Exec& ex, const Run& of, const parallel::Batch& batch, PhaseClock* clock);
  /// Runs the action's passes, without beginning a program.
  void run_passes(Exec& ex, const Run& of, const parallel::Batch& batch, PhaseClock* clock = nullptr);
  /// Returns the actions of a micro-batch in a chunk, in order: those of a sequence of programs.
  std::vector<size_t> sequence_of(int64_t micro, int64_t chunk) const;
  model::Transformer::Saved& saved_of(size_t action);

  std::vector<std::vector<model::Transformer::Saved>> saved_;  // by chunk and frame
  std::unique_ptr<params::GradSink> grads_;
  optim::Rules rules_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  offload::Engine* offload_ = nullptr;  // the optimizer, if its state is on the host
  std::unique_ptr<MicroGraphs> graphs_;
  std::optional<parallel::Routing> routing_;  // empty without experts
  std::vector<ChoiceHash> choice_hashes_;
  bool hashes_choices_ = false;  // in this step
  HostCopy choices_on_host_;
  /// The terms of the loss that a step reports: the place of the mean of losses(t).
  std::vector<double Outcome::*> terms_ = {&Outcome::loss};
  /// This stage's actions of a step with accumulation() micro-batches; with one stage, a step with fewer has the first
  /// of them. By action, the programs and the frames in the arena.
  std::vector<sharding::Action> actions_;
  std::vector<std::string> programs_;
  std::vector<std::string> titles_;  // in a trace, by action: "F 3", with chunks "F 3.1"; empty if there is one stage
  sharding::Frames frames_;
  std::vector<parallel::Batch> loaded_;  // the step's, by memory_of()
  Buffer sorted_, sorted_positions_;     // on the device: the orders in which the embedding's backward pass sums rows
  Buffer loss_scale_;                    // Batch::loss_scale, of the step
  data::TokenBatch host_;
  ops::RowsByToken host_sorted_, host_sorted_positions_;  // orders of the rows of host_
  std::vector<int32_t> stored_ids_, drawn_first_keys_, drawn_positions_;
  std::optional<int64_t> ahead_;  // position in the training order of the batch that was prefetched into host_
  CommBytes comm_bytes_per_step_;
  UpdateCost update_cost_;
  const std::string update_key_ = "update";
};

}  // namespace trainer::train
