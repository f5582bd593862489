#pragma once
// ParamStore: the model's parameters. A parameter is logical (a global tensor with a name); its storage is local. Each
// group (embedding, a block, the head) is one flat space; a slot is a local tensor in it that one operator uses; a slot
// may hold several parameters side by side (q, k, v; gate, up), so that one product serves them.
//
// Per group there are flat buffers: compute weights and gradients of every element; master weights (accumulator type;
// they are the compute weights when the types agree) and both moments of every element, or with ZeRO-1 (Rajbhandari et
// al. 2020) of the chunk that this replica of the model owns.
//
// A slot's matrix need not be stored where it is used. Flat layouts (AxoNN's z, Optimus' rows) store a piece of it on
// each rank: then the WeightCache gathers it for a use, and GradSink takes its gradient back.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "mesh/mesh.h"
#include "params/weight_cache.h"
#include "tensor/buffer.h"

namespace trainer::params {

struct Init {
  enum class Kind { zeros, ones, normal } kind = Kind::zeros;
  double std = 0;
};

struct Param {
  std::string name;
  Shape shape;  // global
  Init init;
  bool decay = false;  // weight decay applies (two or more dimensions)
  int group = 0;
  bool primary = true;  // among the ranks of one replica that hold the same elements, the one that counts and saves
  std::vector<mesh::Run> runs;  // global offset ↔ offset in the group's flat space
  int64_t count() const { return shape.count(); }
};

/// One parameter of a slot.
struct Part {
  std::string name;
  mesh::Layout layout;  // of a matrix or a vector; says nothing of the data axis
  Init init;
  /// Axes besides data and those of flat placements along which a backward pass leaves partial sums of the gradient
  /// (Layout::gradient). They are added once a step.
  mesh::AxisSet sum_over = 0;
};

/// Part of a flat space: rows of `cols` elements, `pitch` apart.
struct Region {
  int64_t offset = 0, rows = 1, cols = 0, pitch = 0;
  int64_t count() const { return rows * cols; }
};
/// What of `region` lies in `chunk`: of a matrix perhaps the end of a row, whole rows, and the beginning of another.
std::vector<Region> clip(const Region& region, comm::Chunk chunk);

/// The replicas of the model that train together, each on its own sequences: the mesh axis "data". The communicators
/// connect the ranks that hold the same shards.
struct Replicas {
  comm::Communicator* grads = nullptr;  // null: one replica
  comm::Communicator* weights = nullptr;
  bool split_state = false;  // ZeRO-1: each keeps the optimizer state of the elements it owns only
  int count() const { return grads == nullptr ? 1 : grads->size(); }
  int index() const { return grads == nullptr ? 0 : grads->rank(); }
};

struct Group {
  std::string name;
  int64_t elements = 0;  // of the flat space, padding included; the same on every rank, as are the places of slots
  std::vector<int> params;
  std::vector<SlotId> slots;
  comm::Chunk owned;     // this replica's share: of block sums, of checkpoints, of ZeRO-1
  comm::Chunk held;      // master weights and moments are kept of these elements: `owned` with ZeRO-1, else all
  Buffer compute, grad;  // every element; compute is empty when the master serves
  Buffer master;         // every element when it serves as compute weights, else of `held`
  Buffer m, v;           // of `held`

  comm::Chunk master_range() const { return compute ? held : comm::Chunk{0, elements}; }

  /// Elements of `range` of the flat space, which must be there (master_range(), held).
  Tensor master_of(comm::Chunk range) const {
    return master.tensor().range(range.begin - master_range().begin, range.count);
  }
  Tensor m_of(comm::Chunk range) const { return m.tensor().range(range.begin - held.begin, range.count); }
  Tensor v_of(comm::Chunk range) const { return v.tensor().range(range.begin - held.begin, range.count); }
};

class ParamStore {
 public:
  /// What this rank of `mesh` holds; without a mesh, everything. `split_state`: ZeRO-1 over the axis "data".
  ParamStore(device::Device& device, DType compute, mesh::Mesh* mesh = nullptr, bool split_state = false);

  // Declaring (before allocate()).
  int add_group(std::string name);
  /// Parts side by side: matrices whose boxes [in, out_i] have equal rows make a local [in, Σ out_i], vectors a local
  /// [Σ out_i]. Flat placements, the same for all parts, apply to that matrix. Weight decay applies to matrices.
  SlotId add_slot(int group, std::vector<Part> parts);
  /// A layout with every element on every rank.
  mesh::Layout whole(Shape shape) const { return {mesh_shape_, shape}; }

  /// Allocates what the run needs: `training` adds gradients and moments.
  void allocate(bool training);
  /// Initial values by (seed, name, global index); refreshes the compute weights.
  void initialize(uint64_t seed);
  /// Compute weights from the master weights (after initialize, load); packed forms become stale. Every replica calls.
  void refresh_compute();
  /// The owned chunk of a group's compute weights has been written (ZeRO-1): starts sending it to the other replicas.
  comm::Ticket gather_weights(Exec& ex, int group);
  /// The optimizer has just written master and compute weights.
  void weights_changed() { weights_.weights_changed(); }

  const Replicas& replicas() const { return replicas_; }
  DType compute_dtype() const { return compute_; }
  device::Device& device() const { return device_; }
  DType state_dtype() const { return accumulator_of(compute_); }

  /// The matrices of slots as products read them.
  WeightCache& weights() { return weights_; }
  /// The matrix of a slot that is stored where it is used; compute type.
  Tensor weight(SlotId slot) const;
  /// What is stored of a slot: its matrix, or the piece [n] of a spread one. Compute type.
  Tensor stored_weight(SlotId slot) const;
  /// Whether the slot's matrix is stored in pieces; over which axes.
  bool spread(SlotId slot) const { return flat_axes(slot) != 0; }
  mesh::AxisSet flat_axes(SlotId slot) const { return slots_[static_cast<size_t>(slot)].flat; }
  Tensor gradient(SlotId slot) const;  // of what is stored; accumulator type

  const std::vector<Param>& params() const { return params_; }
  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }
  int group_of(SlotId slot) const { return slots_[static_cast<size_t>(slot)].group; }
  const std::vector<int>& params_of(SlotId slot) const { return slots_[static_cast<size_t>(slot)].params; }
  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  int64_t parameter_count() const;  // global elements, padding not counted
  /// Elements of the slot's range in its group's flat space.
  struct Range {
    int64_t offset, count;
  };
  Range range_of(SlotId slot) const;
  bool decays(SlotId slot) const { return slots_[static_cast<size_t>(slot)].decay; }
  /// Local shape of the slot's matrix when it is all here.
  Shape box(SlotId slot) const { return slots_[static_cast<size_t>(slot)].box; }

  /// Elements of a group whose gradients are to be added up over some axes; `spread`: those of spread slots, which have
  /// to come home first.
  struct Sum {
    mesh::AxisSet axes;
    bool spread;
    std::vector<Region> regions;
  };
  std::vector<Sum> sums_of(int group) const;
  /// The elements of a group that this rank counts in the gradient norm: what several ranks of a replica hold counts
  /// once. By slots; padding, which is zero, may be among them.
  std::vector<Region> counted(int group) const;

  /// Null: one rank alone.
  mesh::Mesh* mesh() const { return mesh_; }
  const mesh::MeshShape& mesh_shape() const { return mesh_shape_; }
  int rank() const { return rank_; }

 private:
  struct Slot {
    int group = 0;
    int64_t offset = 0;  // in the group's flat space
    Shape box, stored;   // local: in use, in the flat space
    bool decay = false;
    std::vector<int> params;
    std::vector<Part> parts;
    mesh::AxisSet flat = 0;
  };
  /// The piece of the slot's matrix that is stored here.
  comm::Chunk piece_of(const Slot& slot) const;
  /// Where columns [first, first + width) of the slot's matrix are in the group's flat space.
  std::vector<Region> columns_of(const Slot& slot, int64_t first, int64_t width) const;
  /// A rank of the first replica at this place of the mesh, which stands for all of them.
  int rank_of_first_replica() const;

  device::Device& device_;
  DType compute_;
  mesh::Mesh* mesh_;
  mesh::MeshShape mesh_shape_;
  int rank_;
  Replicas replicas_;
  std::vector<Param> params_;
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
  WeightCache weights_;  // after the groups: a gather that an exception leaves under way reads their memory
};

}  // namespace trainer::params
