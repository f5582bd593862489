#pragma once
// ParamStore: the memory of the model's parameters (ParamTable).
//
// For training, each group has flat buffers:
//   - compute weights of all elements;
//   - gradients of all elements, which may be in the arena (ParamStore::Gradients);
//   - master weights in the accumulator type; the same buffer as the compute weights if the types agree;
//   - the states that the optimizer keeps next to the master weights (keep_state), for Adam both moments.
// With ZeRO-1 (Rajbhandari et al. 2020), master weights and states cover only the chunk that this replica owns.
//
// Without training there are no groups. The compute weights of each slot are allocated separately, and are released
// when the slot has been packed.
//
// A slot may be sharded: with a flat placement (AxoNN's z, Optimus' rows) each rank stores a shard of the slot's
// matrix. WeightCache then gathers the matrix for use, and GradSink reduce-scatters its gradient.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "mesh/mesh.h"
#include "params/param_table.h"
#include "params/weight_cache.h"
#include "tensor/buffer.h"

namespace trainer::params {

/// The replicas of the model (mesh axis "data"), which train together, each on different sequences. The communicators
/// connect the ranks that hold the same shards.
struct Replicas {
  comm::Communicator* grads = nullptr;  // null: one replica
  comm::Communicator* weights = nullptr;
  bool split_state = false;  // ZeRO-1: each replica stores the optimizer state of its own chunk only
  int count() const { return grads == nullptr ? 1 : grads->size(); }
  int index() const { return grads == nullptr ? 0 : grads->rank(); }
};

/// A value that an optimizer keeps next to each master weight of some parameters.
struct StateSpec {
  std::string suffix;  // the tensor is stored in checkpoints as NAME#suffix
  DType type = DType::f32;
};

/// The values of a StateSpec in a group.
struct State {
  std::string suffix;
  std::vector<comm::Chunk> chunks;  // the elements that have the state, held here or not
  Buffer memory;                    // those of them that are held, chunk after chunk

  /// Returns the chunk that contains an element of the flat buffer; empty if the element does not have this state.
  comm::Chunk chunk_with(int64_t element) const {
    for (const comm::Chunk chunk : chunks)
      if (overlap(chunk, {element, 1}).count > 0) return chunk;
    return {};
  }
};

/// A flat buffer with its memory.
struct Group : SlotGroup {
  comm::Chunk owned;   // this replica's chunk: for block sums, checkpoints and ZeRO-1
  comm::Chunk held;    // elements whose master weights and states are stored here: `owned` with ZeRO-1, else all
  Buffer compute;      // all elements; empty if `master` has the compute weights
  Tensor grad;         // all elements; in the arena from a step's first write until its update
  Buffer grad_memory;  // empty if gradients are in the arena
  Buffer master;       // all elements if it has the compute weights, else those of `held`
  std::vector<State> states;

  comm::Chunk master_range() const { return compute ? held : comm::Chunk{0, elements}; }

  /// Return the elements in `range` of the flat buffer, which must be stored here (master_range(), held).
  Tensor master_of(comm::Chunk range) const {
    return master.tensor().range(range.begin - master_range().begin, range.count);
  }
  /// `range` must be within one chunk of the state.
  Tensor state(std::string_view suffix, comm::Chunk range) const;
};

/// The owner of master weights and states, which updates weights concurrently with the compute thread, and may store
/// weights and states elsewhere. Its functions are called by the compute thread.
class StateOwner {
 public:
  virtual ~StateOwner() = default;
  /// Returns once the group's compute weights include the last update, which no longer reads the group's gradient.
  virtual void await(int group) = 0;
  /// Returns once the master weights and states in the groups' buffers include the last update, too.
  virtual void settle() = 0;
  /// Called before those buffers are overwritten: invalidates copies stored elsewhere.
  virtual void forget() = 0;
};

class ParamStore : public ParamTable {
 public:
  /// Creates the store of this rank of `mesh`; without a mesh the rank holds everything. `split_state`: ZeRO-1 over the
  /// axis "data".
  ParamStore(device::Device& device, DType compute, mesh::Mesh* mesh = nullptr, bool split_state = false);

  /// Allocates this state for elements of the flat buffers, by group. Call before allocate().
  void keep_state(StateSpec spec, std::vector<std::vector<comm::Chunk>> chunks) {
    kept_.emplace_back(std::move(spec), std::move(chunks));
  }
  /// Stores master weights and states in the memory of `home`, a CPU device that must outlive the store; compute
  /// weights are then stored separately. Call before allocate().
  void keep_state_on(device::Device& home) { home_ = &home; }
  /// Sets the owner; null: none.
  void set_state_owner(StateOwner* owner) { state_owner_ = owner; }
  /// Returns the device whose memory holds master weights and states.
  device::Device& home() const { return home_ == nullptr ? device_ : *home_; }
  /// Call settle() before reading the master weights and states in the groups' buffers, and forget() before writing
  /// them.
  void settle() const {
    if (state_owner_ != nullptr) state_owner_->settle();
  }
  void forget() const {
    if (state_owner_ != nullptr) state_owner_->forget();
  }

  /// The memory of gradients. `none`: no training; the weights are constant. `arena`: memory that a step's only
  /// micro-step keeps for the update, and that activations use before.
  enum class Gradients { none, own_memory, arena };
  /// Allocates memory for the parameters added so far; for training, also for gradients and states.
  void allocate(Gradients gradients);
  void allocate(bool training) { allocate(training ? Gradients::own_memory : Gradients::none); }
  bool gradients_in_arena() const { return gradients_ == Gradients::arena; }
  /// True if nothing is trained, so that there are only compute weights, which do not change once they are filled.
  bool is_constant() const { return !constant_.empty(); }
  /// Releases a constant slot, which has been packed; stored_weight() then returns a tensor without data.
  void release(SlotId slot) { constant_[static_cast<size_t>(slot)] = {}; }
  /// Waits for updates that read a group's gradient, and takes it from the arena if it is stored there. Call once per
  /// step, before its first write.
  void place_gradient(Exec& ex, int group);
  /// Sets initial values, which depend on (seed, name, global index); refreshes the compute weights.
  void initialize(uint64_t seed);
  /// Computes the compute weights from the master weights (after initialize() or loading); packed weights become stale.
  /// Collective over the replicas. Code that writes the master weights must call forget() first. Constant weights are
  /// packed instead, so they can be filled only once.
  void refresh_compute();
  /// Starts the all-gather of a group's compute weights over the replicas, after each replica has written its own chunk
  /// (ZeRO-1).
  comm::Ticket gather_weights(Exec& ex, int group);
  /// Call after the optimizer has written master and compute weights.
  void weights_changed() { weights_.weights_changed(); }

  const Replicas& replicas() const { return replicas_; }
  DType compute_dtype() const { return compute_; }
  device::Device& device() const { return device_; }
  DType state_dtype() const { return accumulator_of(compute_); }

  /// Returns the groups; valid after allocate() for training.
  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }
  /// Returns the cache of gathered and packed matrices.
  WeightCache& weights() { return weights_; }
  /// Returns the matrix of a slot that is not sharded; compute type.
  Tensor weight(SlotId slot) const;
  /// Returns the stored part of a slot: its matrix, or the shard [n] of a sharded one. Compute type. The tensor has no
  /// data if the slot was released.
  Tensor stored_weight(SlotId slot) const;
  Tensor gradient(SlotId slot) const;  // gradient of the stored part; accumulator type

  /// Returns the mesh; null: a single rank.
  mesh::Mesh* mesh() const { return mesh_; }

 private:
  /// Returns the stored part of a slot within its group's flat buffer `flat`.
  Tensor stored_in(const Tensor& flat, SlotId slot) const;

  /// Computes a group's compute weights on the host, where its state is stored, and copies them to the device.
  void send_compute(const Group& group);

  device::Device& device_;
  device::Device* home_ = nullptr;  // null: device_
  StateOwner* state_owner_ = nullptr;
  std::vector<std::pair<StateSpec, std::vector<std::vector<comm::Chunk>>>> kept_;  // by group
  DType compute_;
  mesh::Mesh* mesh_;
  Replicas replicas_;
  Gradients gradients_ = Gradients::none;
  std::vector<Group> groups_;     // empty if the weights are constant
  std::vector<Buffer> constant_;  // by slot: constant compute weights, else empty
  WeightCache weights_;           // declared last: a gather that an exception leaves in flight reads the groups
};

}  // namespace trainer::params
