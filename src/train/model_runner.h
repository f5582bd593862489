#pragma once
// ModelRunner: a model on the ranks of a mesh, and the programs recorded for it. It computes losses; a generator and a
// scorer record programs of their own. Trainer adds gradients and updates.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "mesh/mesh.h"
#include "model/transformer.h"
#include "parallel/row_order.h"
#include "tensor/costs.h"
#include "train/documents.h"
#include "train/links.h"
#include "train/rank_scalars.h"

namespace trainer::train {

class ModelRunner {
 public:
  /// Allocates weights that do not change, for evaluation and generation. `config` must be resolved for a world of this
  /// size. Every rank must construct a ModelRunner and call the same functions in the same order. `sharding`, on this
  /// world's mesh, replaces the configured sharding.
  ModelRunner(device::Device& device, comm::World& world, const config::Config& config, int64_t vocab, DType compute,
              std::optional<sharding::ModelSharding> sharding = {});
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  /// Records the program of evaluation and allocates its memory. Must be called before the first batch.
  void plan();

  /// Runs a program on a dry device, to record the order of its gathers and then its memory, and adds its costs to
  /// `meter`. The caller then seals arena(). Does nothing if the program is already recorded.
  void record(const std::string& program, const std::function<void(Exec&)>& body, Meter& meter);
  /// Begin and end a recorded program; the operators in between must be those of the program. `frames`: those of its
  /// sequence (Arena::begin).
  void begin(Exec& ex, const std::string& program, const Arena::PerPool& frames = {});
  void end();

  /// Returns the sum of losses, without dropout, over those rows of this replica's micro-batch whose losses this rank
  /// has: none before the last stage. Masked rows count as 0. Waits for the device, and for the stages before.
  double loss_sum(const data::TokenBatch& batch) { return loss_sums({&batch, 1}).front(); }
  /// Returns the same of each of at most batches_at_once() batches; the stages compute different ones at the same time.
  std::vector<double> loss_sums(std::span<const data::TokenBatch> batches);
  /// Returns how many batches loss_sums() takes: with stages as many as a step has micro-batches, at most four per
  /// stage.
  int64_t batches_at_once() const { return std::min(batches_, 4 * sharding_.stages.count); }
  /// The tensors of a batch on the device, each [rows]; `weights` has the type of the optimizer state. `first_key` is
  /// empty unless documents are separate, and `positions` unless learned positions also restart with each.
  struct BatchTensors {
    Tensor ids, targets, weights, first_key, positions;
  };
  /// Copies a batch, whose rows are in their natural order, to the device, in the order of stored rows.
  void upload(const data::TokenBatch& batch, const parallel::RowOrder& order, const BatchTensors& to);
  /// Returns a copy of the values on the device; an empty buffer if there are none.
  Buffer on_device(const std::vector<int32_t>& values);

  model::Transformer& model() { return *model_; }
  params::ParamStore& store() { return store_; }
  const params::ParamStore& store() const { return store_; }
  Exec exec() { return {device_, arena_, meter_}; }
  /// Exchanges scalars among ranks between micro-steps.
  RankScalars& scalars() { return *scalars_; }
  Meter& meter() { return meter_; }
  Arena& arena() { return arena_; }
  device::Device& device() { return device_; }
  const config::Config& config() const { return config_; }
  int64_t vocab() const { return model_->vocab(); }
  /// Returns the number of elements of the whole model's parameters, without padding.
  int64_t parameter_count() const;
  /// Returns the names of the model's parameters that only other stages have. Records the model again: call it once.
  std::set<std::string> names_elsewhere() const;
  mesh::Mesh& mesh() { return mesh_; }
  const sharding::ModelSharding& sharding() const { return sharding_; }
  /// Returns the order of a batch's rows.
  const parallel::RowOrder& row_order() const { return row_order_; }
  /// Returns the number of sequences in a micro-step: train.micro_batch / ModelSharding::depth().
  int64_t micro_batch() const { return micro_batch_; }
  /// Return the number of replicas that process different sequences, and the index of this rank's replica.
  int64_t replicas() const { return store_.replicas().count(); }
  int64_t replica() const { return store_.replicas().index(); }

  /// The forward passes of a batch through this rank's chunks, in order.
  std::span<const sharding::Action> forward_passes() const { return evaluation_; }
  /// The links of these passes, for any batch of micro_batch() · seq_len token rows.
  StageLinks& links() { return links_; }
  /// Returns links for passes of other batches, of at most `rows` token rows that are not split over ranks.
  StageLinks make_links(int64_t rows) {
    return {device_,
            mesh_,
            sharding_,
            strategy_,
            {.count = rows, .cut = false},
            config_.model.d_model,
            store_.compute_dtype()};
  }

  /// Returns the memory by category, in bytes; activations are those of the largest program. Categories of host memory
  /// begin with "host_".
  BytesByCategory memory() const;

 protected:
  /// Creates a model whose memory allocate() then allocates.
  struct Unallocated {};
  ModelRunner(Unallocated, device::Device& device, comm::World& world, const config::Config& config, int64_t vocab,
              DType compute, std::optional<sharding::ModelSharding> sharding);
  /// Allocates the parameters, and this number of batches, each with that many losses by row; one with one stage.
  void allocate(params::ParamStore::Gradients gradients, int64_t losses, int64_t batches = 1);

  /// A program, and what it runs.
  struct Body {
    std::string program;
    std::function<void(Exec&)> run;
  };
  /// Records the order of gathers of programs that run one after another; each may use what those before it keep.
  void record_gathers(const std::vector<Body>& programs);
  /// Runs `body` on a dry device with the gathers of the recorded program.
  void run_recorded(Exec& dry, const std::string& program, const std::function<void(Exec&)>& body);
  /// Copies a batch to the tensors of batch(number).
  void upload(const data::TokenBatch& batch, int64_t number);
  /// Returns a batch that allocate() numbered, and its losses [rows]; `term` is numbered, too.
  parallel::Batch batch(int64_t number = 0) const;
  Tensor losses(int64_t term, int64_t number = 0) const;
  /// True if learned positions restart with each document.
  bool restarts_positions() const { return config_.data.separates() && !has_rope_positions(config_.model); }
  /// Returns the first keys of the last batch that was copied to the device, by natural row.
  const std::vector<int32_t>& first_keys() const { return first_keys_; }

  device::Device& device_;
  config::Config config_;
  const sharding::ModelSharding sharding_;
  const int64_t micro_batch_;
  const parallel::RowOrder row_order_;
  Meter meter_;
  Arena arena_;
  mesh::Mesh mesh_;
  std::unique_ptr<device::Device> state_home_;  // the host, which stores the optimizer state; null: device_ stores it
  params::ParamStore store_;
  parallel::Strategy strategy_;
  std::unique_ptr<model::Transformer> model_;
  StageLinks links_;
  std::optional<RankScalars> scalars_;

 private:
  /// Throws Code::config unless the ranks of a replica's stage have the same GEMM kernels: where ranks hold the same
  /// rows, their routers must choose the same experts.
  void require_equal_kernels() const;
  /// Returns the number of token rows of a batch.
  int64_t rows() const { return micro_batch_ * config_.model.seq_len; }
  int64_t stage() const { return sharding_.stage_axis() == 0 ? 0 : mesh_.index("stage"); }
  std::vector<sharding::Action> forward_passes(int64_t batches) const {
    return sharding::forward_lists(sharding_.stages, batches)[static_cast<size_t>(stage())];
  }
  /// Returns the parameters of the whole model by name, with their numbers of elements.
  std::map<std::string, int64_t> whole_model() const;
  /// Runs a forward pass through one of this rank's chunks for loss_sums().
  void evaluate(Exec& ex, const sharding::Action& action);

  Buffer ids_, targets_, weights_, losses_, first_key_;
  Buffer order_, positions_;  // the tensors of row_order_, which all batches share; or positions in documents, by batch
  int64_t terms_of_loss_ = 1;  // in losses_, of a batch
  std::vector<int32_t> first_keys_;
  std::vector<int32_t> stored_, positions_in_documents_;  // stored_: values in the order of stored rows
  std::vector<float> stored_weights_;
  int64_t batches_ = 1;                       // that allocate() numbered
  std::vector<sharding::Action> evaluation_;  // forward passes of a batch through this rank's chunks
  std::vector<std::string> evaluation_keys_;  // their programs
};

}  // namespace trainer::train
