#pragma once
// ParamTable: the parameters of a model and their storage, before memory is allocated. A parameter is logical (a global
// tensor with a name); its storage is local. Each group (embedding, a block, the head) is one flat buffer. A slot is a
// local tensor in that buffer that one operator uses. It may hold several parameters side by side (q, k, v; gate, up),
// so that one GEMM handles them all.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "mesh/mesh.h"

namespace trainer::params {

using SlotId = int;

struct Init {
  enum class Kind { zeros, ones, normal } kind = Kind::zeros;
  double std = 0;
};

struct Param {
  std::string name;
  Shape shape;  // global
  Init init;
  int group = 0;
  bool primary = true;       // this rank counts and saves it, among the ranks of a replica that hold the same elements
  bool copy = false;         // the parameter is on another pipeline stage; a copy is not primary
  bool hidden = false;       // the weight of a block's linear
  bool whole_matrix = true;  // if hidden, a rule that needs whole matrices may take it
  std::vector<mesh::Run> runs;  // global offset ↔ offset in the group's flat buffer; empty before the table is closed
  int64_t count() const { return shape.count(); }
};

/// A parameter of a slot.
struct SlotPart {
  std::string name;
  mesh::Layout layout;  // layout of a matrix or vector; without the data axis
  Init init;
  /// The axes, other than data and flat ones, over which the gradient is a partial sum after a backward pass. It is
  /// reduced over them once per step.
  mesh::AxisSet sum_over = 0;
  bool hidden = false;       // the weight of a block's linear
  bool copy = false;         // the parameter of this name is on another pipeline stage, which counts and saves it
  bool whole_matrix = true;  // if hidden, Muon may orthogonalize it; false: it is a list of vectors, such as a router
};

/// A part of a flat buffer: rows of `cols` elements, `pitch` apart.
struct Region {
  int64_t offset = 0, rows = 1, cols = 0, pitch = 0;
  int64_t count() const { return rows * cols; }
};
/// Returns the elements in both chunks.
constexpr comm::Chunk overlap(comm::Chunk a, comm::Chunk b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.begin + a.count, b.begin + b.count);
  return {begin, std::max<int64_t>(0, end - begin)};
}
/// Returns the part of `region` within `chunk`. For a matrix that may be the end of a row, complete rows, and the
/// beginning of a row.
std::vector<Region> clip(const Region& region, comm::Chunk chunk);

/// A flat buffer.
struct SlotGroup {
  std::string name;
  int64_t elements = 0;  // including padding; equal on every rank, as are the slots' offsets
  std::vector<int> params;
  std::vector<SlotId> slots;
};

class ParamTable {
 public:
  /// Creates an empty table for `rank` on a mesh of this shape.
  ParamTable(mesh::MeshShape shape, int rank) : mesh_shape_(std::move(shape)), rank_(rank) {}

  int add_group(std::string name);
  /// Adds a slot with the parts side by side: matrices, whose boxes [in, out_i] must have equal rows, form a local [in,
  /// Σ out_i]; so do E matrices each, whose boxes [E, in, out_i] are [E·in, out_i]; vectors form a local [Σ out_i].
  /// Flat placements, which must be the same for all parts, shard that whole matrix. Weight decay applies to matrices
  /// only.
  SlotId add_slot(int group, std::vector<SlotPart> parts);
  /// Closes the table, after which adding to it is an error, and lists the runs of its parameters.
  void close();
  /// Returns the layout in which every rank holds all elements.
  mesh::Layout replicated(Shape shape) const { return {mesh_shape_, shape}; }

  const std::vector<SlotGroup>& slot_groups() const { return slot_groups_; }
  /// True if this rank has slots of the group. Groups have the same ids on all ranks; one without slots has no
  /// elements.
  bool has(int group) const { return !slot_groups_[static_cast<size_t>(group)].slots.empty(); }
  const std::vector<Param>& params() const { return params_; }
  int64_t parameter_count() const;  // number of elements of all global tensors, without padding and copies

  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  int group_of(SlotId slot) const { return at(slot).group; }
  const std::vector<int>& params_of(SlotId slot) const { return at(slot).params; }
  const std::vector<SlotPart>& parts_of(SlotId slot) const { return at(slot).parts; }  // in the order of params_of()
  /// The range of a slot in its group's flat buffer, in elements.
  struct Range {
    int64_t offset, count;
  };
  Range range_of(SlotId slot) const { return {at(slot).offset, at(slot).stored.count()}; }
  /// Return the local shape of the slot's matrix in use (gathered if it is sharded), and the shape of the stored part.
  Shape box(SlotId slot) const { return at(slot).box; }
  Shape stored(SlotId slot) const { return at(slot).stored; }
  /// True if the slot's matrix is sharded and gathered for use. flat_axes() returns the axes.
  bool is_sharded(SlotId slot) const { return flat_axes(slot) != 0; }
  mesh::AxisSet flat_axes(SlotId slot) const { return at(slot).flat; }
  bool decays(SlotId slot) const { return at(slot).decay; }

  /// Elements of a group whose gradients must be reduced over `axes`. `sharded`: elements of sharded slots, whose
  /// gradients are reduce-scattered first.
  struct Sum {
    mesh::AxisSet axes;
    bool sharded;
    std::vector<Region> regions;
  };
  std::vector<Sum> sums_of(int group) const;
  /// Returns the elements of a group that this rank counts in the gradient norm, in slot order. Elements that several
  /// ranks of a replica hold are counted once. Padding, which is zero, may be included.
  std::vector<Region> counted_regions(int group) const;

  const mesh::MeshShape& mesh_shape() const { return mesh_shape_; }
  int rank() const { return rank_; }

 private:
  struct Slot {
    int group = 0;
    int64_t offset = 0;  // in the group's flat buffer
    Shape box, stored;   // local shapes: in use, and in the flat buffer
    bool decay = false;
    std::vector<int> params;
    std::vector<SlotPart> parts;
    mesh::AxisSet flat = 0;
  };
  const Slot& at(SlotId slot) const { return slots_[static_cast<size_t>(slot)]; }
  /// Returns the shard of the slot's matrix that this rank stores.
  comm::Chunk piece_of(const Slot& slot) const;
  /// Returns where columns [first, first + width) of the slot's matrix are in the group's flat buffer.
  std::vector<Region> columns_of(const Slot& slot, int64_t first, int64_t width) const;
  /// Returns the rank with the same coordinates in the first replica and stage; ownership is decided for that rank, so
  /// that it is the same in all of them.
  int rank_of_first_replica() const;

  mesh::MeshShape mesh_shape_;
  int rank_;
  std::vector<SlotGroup> slot_groups_;
  std::vector<Param> params_;
  std::vector<Slot> slots_;
  bool closed_ = false;
};

}  // namespace trainer::params
