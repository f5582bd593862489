#pragma once
// How activations are spread over the ranks of a replica, as sets of mesh axes, and moves between such spreads.
//
// Between the layers of a model, token rows and their gradients are complete. A rank that holds an element holds its
// value, never a partial sum of it. Partial sums exist within linears, the embedding and the head only. Hence the
// backward of a move between two spreads is the move back.
#include "mesh/redistribute.h"
#include "sharding/sharding.h"

namespace trainer::parallel {

using mesh::AxisSet;
using sharding::Spread;
using sharding::VocabSpread;

/// The token rows of a pass. Where they are not cut (generation, which has one row at a time), every spread means all
/// rows.
struct Rows {
  int64_t count = 0;
  bool cut = true;
};

/// A tile says where a rank's part of a matrix begins, and its extents.
struct Tile {
  int64_t first_row = 0, rows = 0, first_col = 0, cols = 0;
};

/// Whole sequences × whole heads: what a rank computes attention of.
struct AttentionTile {
  int64_t first_sequence = 0, sequences = 0;
  int64_t first_head = 0, heads = 0, kv_heads = 0;
};

/// Ranks is this rank among the others of the mesh; or alone, without a mesh.
class Ranks {
 public:
  Ranks() = default;
  /// `overlap` false: every collective is waited for at once, to see what it costs.
  explicit Ranks(mesh::Mesh& mesh, bool overlap = true) : mesh_(&mesh), shape_(mesh.shape()), overlap_(overlap) {}

  bool overlap() const { return overlap_; }
  int64_t size(AxisSet axes) const { return shape_.group_size(axes); }
  int64_t index(AxisSet axes) const { return mesh_ == nullptr ? 0 : shape_.index(mesh_->rank(), axes); }
  /// Returns the communicator along these axes; an internal error without a mesh.
  comm::Communicator& along(AxisSet axes, comm::Lane lane = comm::Lane::critical) const;

  /// Returns the layout of a matrix [rows, width] of each replica (axis "data", outermost) in this spread; tile()
  /// returns this rank's part of it. Throws Code::config when it does not divide.
  /// `parts`: of so many such matrices side by side, as [rows, parts, width]; each is cut over the columns.
  mesh::Layout layout(Spread spread, Rows rows, int64_t width, int64_t parts = 0) const;
  Tile tile(Spread spread, Rows rows, int64_t width) const;

  /// Moves x, a part of a matrix [rows, width], from one spread to another. Does nothing when they are the same.
  Scratch move(Exec& ex, Rows rows, int64_t width, Spread from, Spread to, Scratch&& x) const;
  /// Starts a move between any layouts, such as of partial sums; mesh::start_move says what `out` is for. The first
  /// collective runs until finish(), unless overlap is off.
  mesh::Transit start_move(Exec& ex, const mesh::Layout& from, const mesh::Layout& to, Scratch&& x,
                           const Tensor& out = {}) const;
  mesh::Transit start_move(Exec& ex, const mesh::Layout& from, const mesh::Layout& to, const Tensor& x,
                           const Tensor& out = {}) const;
  mesh::Transit start_move_in_place(Exec& ex, const mesh::Layout& from, const mesh::Layout& to, const Tensor& x) const;

 private:
  mesh::Transit wait_unless_overlapping(Exec& ex, mesh::Transit&& transit) const;
  AxisSet replicas() const { return shape_.has("data") ? shape_.set("data") : AxisSet{0}; }
  mesh::Mesh* mesh_ = nullptr;
  mesh::MeshShape shape_;
  bool overlap_ = true;
};

}  // namespace trainer::parallel
