#pragma once
// Layout: where the elements of a global tensor are stored. A pure value: no communication, no memory.
#include <array>
#include <string>
#include <vector>

#include "base/shape.h"
#include "mesh/mesh_shape.h"
#include "mesh/runs.h"

namespace trainer::mesh {

/// The placement of a tensor along one mesh axis.
///   replicate  every coordinate holds the same elements
///   split      dim `dim` is split into equal blocks; if several axes split a dim, the outer axis splits it first
///   partial    every coordinate holds a partial sum; the tensor is their total along the axis
///   flat       the box that the splits leave is divided into contiguous shards (comm::chunk_of); several flat axes
///              divide it once, over all their ranks
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

/// The position of a rank's box in a local matrix next to other boxes, so that one GEMM or one all-gather serves them
/// all. Flat axes split the whole matrix.
struct Place {
  int64_t offset = 0;  // the offset of the box's first element
  int64_t pitch = 0;   // columns of the matrix; 0: the columns of the box only
};

/// A layout is built step by step: Layout(mesh, {V, H}).padded(0, 1024).with("x", split(0)).with("z", kFlat). On an
/// axis of size 1 all placements are equivalent and become kReplicate.
class Layout {
 public:
  Layout() = default;
  /// Makes a layout that is replicated on all axes.
  Layout(MeshShape mesh, Shape shape) : mesh_(std::move(mesh)), shape_(shape), padded_(shape) {}

  /// Returns the layout with `placement` on the axis or alias `axes`. Throws Code::config when a dim does not divide.
  Layout with(std::string_view axes, Placement placement) const { return with(mesh_.set(axes), placement); }
  Layout with(AxisSet axes, Placement placement) const;
  /// Returns the layout whose dim `dim` is stored and split as if it had `extent` elements. The rest is padding, which
  /// no rank's runs contain.
  Layout padded(int dim, int64_t extent) const;
  /// Returns the layout stored with its two dims exchanged: the box of [V, H] is [H, V] in memory.
  Layout transposed() const;

  const MeshShape& mesh() const { return mesh_; }
  const Shape& shape() const { return shape_; }     // global
  const Shape& extents() const { return padded_; }  // global, padding included
  Placement on(int axis) const { return placements_[static_cast<size_t>(axis)]; }
  bool is_transposed() const { return transposed_; }
  /// Returns the axes of this placement.
  AxisSet axes(Placement placement) const;

  /// Returns the shape that the splits leave, as stored: equal on all ranks.
  Shape box() const;
  /// Returns the shape that `rank` stores: the box, or with flat axes a shard [n] of it.
  Shape local(int rank) const;
  /// Returns the elements that a rank stores, by ascending global offset, with their positions in its memory.
  std::vector<Run> runs(int rank, const Place& place = {}) const;

  /// Returns how many ranks store an element.
  int replicas() const { return mesh_.group_size(axes(kReplicate)); }
  /// True if, among the ranks that store the same elements, `rank` is the one that writes and counts them. It has
  /// coordinate 0 on replicated axes. An internal error for partial layouts.
  bool is_owner(int rank) const;

  bool operator==(const Layout&) const = default;
  /// Orders the layouts on one mesh, for maps.
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
