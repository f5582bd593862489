#pragma once
// The distribution of activations over the ranks of a replica, as sets of mesh axes (Spread), and redistribution
// between spreads.
//
// Between the layers of a model, activations and their gradients are complete: a rank that holds an element holds the
// element's value, never a partial sum. Partial sums exist only within linears, the embedding and the head. So the
// backward pass of a redistribution is the redistribution in the opposite direction.
#include "mesh/redistribute.h"
#include "sharding/sharding.h"

namespace trainer::parallel {

using mesh::AxisSet;
using sharding::Spread;
using sharding::VocabSpread;

/// The token rows of a pass. If `cut` is false (generation, one row at a time), no spread splits rows.
struct Rows {
  int64_t count = 0;
  bool cut = true;
};

/// The offsets and extents of a rank's part of a matrix.
struct Tile {
  int64_t first_row = 0, rows = 0, first_col = 0, cols = 0;
};

/// This rank and the other ranks of the mesh. A single rank requires no mesh.
class Ranks {
 public:
  Ranks() = default;
  /// `overlap` false: every collective blocks immediately, to measure its cost.
  /// `wide_sums`: partial sums are reduced in the accumulator type.
  explicit Ranks(mesh::Mesh& mesh, bool overlap = true, bool wide_sums = false)
      : mesh_(&mesh), shape_(mesh.shape()), overlap_(overlap), wide_sums_(wide_sums) {}

  bool overlap() const { return overlap_; }
  /// Returns the type of partial sums over `axes` of values of type `type`; `type` itself if these axes are none.
  DType sum_type(AxisSet axes, DType type) const { return wide_sums_ && axes != 0 ? accumulator_of(type) : type; }
  int64_t size(AxisSet axes) const { return shape_.group_size(axes); }
  int64_t index(AxisSet axes) const { return mesh_ == nullptr ? 0 : shape_.index(mesh_->rank(), axes); }
  /// Returns the communicator along these axes. Requires a mesh.
  comm::Communicator& along(AxisSet axes, comm::Purpose purpose = comm::Purpose::critical) const;

  /// Returns the layout of a matrix [rows, width] of each replica and stage (the outermost axes) in `spread`; tile()
  /// returns this rank's part of the matrix. Throws Code::config if the matrix cannot be split evenly. With `parts`,
  /// the layout is that of several matrices side by side, [rows, parts, width], each split by columns.
  mesh::Layout layout(Spread spread, Rows rows, int64_t width, int64_t parts = 0) const;
  Tile tile(Spread spread, Rows rows, int64_t width) const;

  /// Redistributes x, a part of a matrix [rows, width], from one spread to another. Does nothing if the spreads are
  /// equal.
  Scratch move(Exec& ex, Rows rows, int64_t width, Spread from, Spread to, Scratch&& x) const;
  /// Returns the step of a redistribution that consists of one step with communication; else null.
  const mesh::Step* only_step(const mesh::Layout& from, const mesh::Layout& to) const;
  /// Starts a redistribution between any layouts, including partial sums; mesh::start_move documents `out`. Without
  /// overlap, waits for the first collective.
  mesh::Transit start_move(Exec& ex, const mesh::Layout& from, const mesh::Layout& to, Scratch&& x,
                           const Tensor& out = {}) const;
  mesh::Transit start_move(Exec& ex, const mesh::Layout& from, const mesh::Layout& to, const Tensor& x,
                           const Tensor& out = {}) const;
  mesh::Transit start_move_in_place(Exec& ex, const mesh::Layout& from, const mesh::Layout& to, const Tensor& x) const;

 private:
  mesh::Transit wait_unless_overlapping(Exec& ex, mesh::Transit&& transit) const;
  /// Returns the axes whose ranks have different matrices: replicas, and stages.
  AxisSet apart() const {
    const auto axes = [&](const char* name) { return shape_.has(name) ? shape_.set(name) : AxisSet{0}; };
    return axes("stage") | axes("data");
  }
  mesh::Mesh* mesh_ = nullptr;
  mesh::MeshShape shape_;
  bool overlap_ = true, wide_sums_ = false;
};

/// Casts x to `type`; returns x itself if it has that type already.
Scratch cast_to(Exec& ex, Scratch&& x, DType type);

}  // namespace trainer::parallel
