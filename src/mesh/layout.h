#pragma once
// Layout describes where the elements of a global tensor are stored. A pure value: no communication, no memory.
#include <array>
#include <string>
#include <vector>

#include "base/shape.h"
#include "mesh/mesh_shape.h"
#include "mesh/runs.h"

namespace trainer::mesh {

/// The placement of a tensor along one mesh axis.
///   replicate  all ranks along the axis hold the same elements
///   split      dim `dim` is split into equal blocks; if several axes split a dim, the outer axis splits it first
///   partial    each rank along the axis holds a partial sum; the tensor is the sum over them
///   flat       the box that remains after all splits is divided into contiguous shards (comm::chunk_of); several flat
///              axes divide it together, over all their ranks
struct Placement {
  enum class Kind : uint8_t { replicate, split, partial, flat };
  Kind kind = Kind::replicate;
  int dim = 0;  // the dim of a split
  bool operator==(const Placement&) const = default;
};
inline constexpr Placement kReplicate{}, kPartial{Placement::Kind::partial}, kFlat{Placement::Kind::flat};
constexpr Placement split(int dim) { return {Placement::Kind::split, dim}; }
/// Returns "B", "P", "S0", "flat".
std::string to_string(Placement placement);

/// The position of a rank's box in a local matrix, side by side with the boxes of other tensors, so that one GEMM or
/// one all-gather handles all of them. Flat axes shard the whole matrix. A box of more than two dims is a matrix, too:
/// its rows are those of all dims before the last one.
struct BoxPosition {
  int64_t offset = 0;  // the offset of the box's first element
  int64_t pitch = 0;   // columns of the matrix; 0: the box is the whole matrix
};

/// Built step by step: Layout(mesh, {V, H}).padded(0, 1024).with("x", split(0)).with("z", kFlat). On an axis of size 1
/// all placements are equivalent and are stored as kReplicate.
class Layout {
 public:
  Layout() = default;
  /// Creates a layout that is replicated on all axes.
  Layout(MeshShape mesh, Shape shape) : mesh_(std::move(mesh)), shape_(shape), padded_(shape) {}

  /// Returns the layout with `placement` on the axis or alias `axes`. Throws Code::config if a dim cannot be split
  /// evenly.
  Layout with(std::string_view axes, Placement placement) const { return with(mesh_.set(axes), placement); }
  Layout with(AxisSet axes, Placement placement) const;
  /// Returns the layout with dim `dim` padded to `extent`, which is then the extent that is stored and split. Runs do
  /// not contain the padding.
  Layout padded(int dim, int64_t extent) const;
  /// Returns the layout with the two dims exchanged in memory: the box of [V, H] is stored as [H, V].
  Layout transposed() const;

  const MeshShape& mesh() const { return mesh_; }
  const Shape& shape() const { return shape_; }     // global
  const Shape& extents() const { return padded_; }  // global, padding included
  Placement on(int axis) const { return placements_[static_cast<size_t>(axis)]; }
  bool is_transposed() const { return transposed_; }
  /// Returns the axes with this placement.
  AxisSet axes(Placement placement) const;

  /// Returns the shape of a rank's block after all splits, as stored; equal on all ranks.
  Shape box() const;
  /// Returns the shape that `rank` stores: the box, or with flat axes a shard [n] of it.
  Shape local(int rank) const;
  /// Returns the elements that `rank` stores, in ascending global order, with their positions in the rank's memory.
  /// `slice` >= 0: only those of matrix [slice, :, :] of a tensor of three dims.
  std::vector<Run> runs(int rank, const BoxPosition& place = {}, int64_t slice = -1) const;

  /// Returns the number of ranks that store each element.
  int replicas() const { return mesh_.group_size(axes(kReplicate)); }
  /// True if `rank` is the one that writes and counts its elements, among the ranks that store the same elements: the
  /// one with coordinate 0 on the replicated axes. An internal error for partial layouts.
  bool is_owner(int rank) const;

  bool operator==(const Layout&) const = default;
  /// Orders layouts on the same mesh, for use as map keys.
  bool operator<(const Layout& other) const { return key() < other.key(); }

 private:
  using Key = std::array<int64_t, 2 + 2 * Shape::kMaxDims + MeshShape::kMaxAxes>;
  Key key() const;
  /// The first element and the extents (padding included) of the rank's box, by global dim.
  struct Box {
    std::array<int64_t, Shape::kMaxDims> begin{}, extent{};
  };
  Box box_of(int rank) const;
  void check_divides() const;

  MeshShape mesh_;
  Shape shape_, padded_;
  std::array<Placement, MeshShape::kMaxAxes> placements_{};
  bool transposed_ = false;
};

/// Returns text such as "[4096, 768] S0 over data+z, S1 over y".
std::string to_string(const Layout& layout);

}  // namespace trainer::mesh
