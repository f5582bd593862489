#pragma once
// ParamTable: the parameters of a model and their storage, before memory is allocated for them. A parameter is logical
// (a global tensor with a name); its storage is local. Each group (embedding, a block, the head) is one flat space. A
// slot is a local tensor in it that one operator uses. It may hold several parameters side by side (q, k, v; gate, up),
// so that one GEMM serves them.
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
  bool primary = true;  // among the ranks of one replica that hold the same elements, the one that counts and saves
  std::vector<mesh::Run> runs;  // global offset ↔ offset in the group's flat space
  int64_t count() const { return shape.count(); }
};

/// One parameter of a slot.
struct Part {
  std::string name;
  mesh::Layout layout;  // of a matrix or a vector; does not cover the data axis
  Init init;
  /// Axes, besides data and those of flat placements, over which a backward pass leaves partial sums of the gradient.
  /// They are reduced once per step.
  mesh::AxisSet sum_over = 0;
};

/// A part of a flat space: rows of `cols` elements, `pitch` apart.
struct Region {
  int64_t offset = 0, rows = 1, cols = 0, pitch = 0;
  int64_t count() const { return rows * cols; }
};
/// Returns the part of `region` within `chunk`: of a matrix possibly the end of a row, complete rows, and the beginning
/// of the next row.
std::vector<Region> clip(const Region& region, comm::Chunk chunk);

/// A flat space.
struct SlotGroup {
  std::string name;
  int64_t elements = 0;  // including padding; equal on every rank, like the offsets of slots
  std::vector<int> params;
  std::vector<SlotId> slots;
};

class ParamTable {
 public:
  /// Makes the table of the parameters that `rank` of a mesh of this shape holds.
  ParamTable(mesh::MeshShape shape, int rank) : mesh_shape_(std::move(shape)), rank_(rank) {}

  int add_group(std::string name);
  /// Adds a slot of parts side by side: matrices whose boxes [in, out_i] have equal rows make a local [in, Σ out_i],
  /// vectors a local [Σ out_i]. Flat placements, the same for all parts, apply to that matrix. Weight decay applies to
  /// matrices.
  SlotId add_slot(int group, std::vector<Part> parts);
  /// Returns a layout with every element on every rank.
  mesh::Layout replicated(Shape shape) const { return {mesh_shape_, shape}; }

  const std::vector<SlotGroup>& slot_groups() const { return slot_groups_; }
  const std::vector<Param>& params() const { return params_; }
  int64_t parameter_count() const;  // global number of elements, without padding

  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  int group_of(SlotId slot) const { return at(slot).group; }
  const std::vector<int>& params_of(SlotId slot) const { return at(slot).params; }
  /// The range of a slot in its group's flat space, in elements.
  struct Range {
    int64_t offset, count;
  };
  Range range_of(SlotId slot) const { return {at(slot).offset, at(slot).stored.count()}; }
  /// Return the local shape of the slot's matrix in use, when it is gathered, and that of its stored part.
  Shape box(SlotId slot) const { return at(slot).box; }
  Shape stored(SlotId slot) const { return at(slot).stored; }
  /// True if the slot's matrix is sharded and gathered for use. flat_axes() returns the axes.
  bool is_sharded(SlotId slot) const { return flat_axes(slot) != 0; }
  mesh::AxisSet flat_axes(SlotId slot) const { return at(slot).flat; }
  bool decays(SlotId slot) const { return at(slot).decay; }

  /// Elements of a group whose gradients must be reduced over some axes; `sharded`: those of sharded slots, whose
  /// reduce-scatter comes first.
  struct Sum {
    mesh::AxisSet axes;
    bool sharded;
    std::vector<Region> regions;
  };
  std::vector<Sum> sums_of(int group) const;
  /// Returns the elements of a group that this rank counts in the gradient norm, in slot order. Elements that several
  /// ranks of a replica hold count once. Padding, which is zero, may be included.
  std::vector<Region> counted_regions(int group) const;

  const mesh::MeshShape& mesh_shape() const { return mesh_shape_; }
  int rank() const { return rank_; }

 protected:
  /// Closes the table, after which adding to it is an error.
  void close() { closed_ = true; }

 private:
  struct Slot {
    int group = 0;
    int64_t offset = 0;  // in the group's flat space
    Shape box, stored;   // local: in use, and in the flat space
    bool decay = false;
    std::vector<int> params;
    std::vector<Part> parts;
    mesh::AxisSet flat = 0;
  };
  const Slot& at(SlotId slot) const { return slots_[static_cast<size_t>(slot)]; }
  /// Returns the piece of the slot's matrix that this rank stores.
  comm::Chunk piece_of(const Slot& slot) const;
  /// Returns the position of columns [first, first + width) of the slot's matrix in the group's flat space.
  std::vector<Region> columns_of(const Slot& slot, int64_t first, int64_t width) const;
  /// Returns the rank of the first replica with these mesh coordinates, which represents those of all replicas.
  int rank_of_first_replica() const;

  mesh::MeshShape mesh_shape_;
  int rank_;
  std::vector<SlotGroup> slot_groups_;
  std::vector<Param> params_;
  std::vector<Slot> slots_;
  bool closed_ = false;
};

}  // namespace trainer::params
