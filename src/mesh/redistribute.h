#pragma once
// Moving a tensor from one layout to another.
#include <optional>

#include "mesh/mesh.h"
#include "tensor/exec.h"

namespace trainer::mesh {

/// A Transit is a move in flight. start_move() runs the local steps before the route's first collective, and starts
/// that one. finish() waits for it and runs the rest, each collective at once. What is computed in between hides the
/// first collective. The tensor that is moved must stay in place until finish(). Every rank of the mesh calls both.
class [[nodiscard]] Transit {
 public:
  Transit() = default;
  /// A move of nothing: finish() returns `there`.
  explicit Transit(Scratch&& there) : owned_(std::move(there)) {}

  /// Waits for the collective that runs and starts no other.
  void wait(Exec& ex);
  /// Ends the move and returns the tensor in its new layout. Empty when the result is in the caller's memory: in `out`,
  /// or in the tensor itself when it was not moved or moved in place.
  Scratch finish(Exec& ex);

 private:
  friend class Mover;
  struct Borrowed {
    void operator()(const void*) const {}
  };
  std::unique_ptr<const Route, Borrowed> route_;  // null: nothing to move
  Mesh* mesh_ = nullptr;
  comm::Lane lane_ = comm::Lane::critical;
  size_t step_ = 0;               // the one that is next, or runs
  std::optional<Layout> before_;  // of `tensor_`; made when there is something to move, for that allocates
  Tensor tensor_, out_;           // what that step moves; where the result goes, if the caller says
  Scratch owned_;                 // its handle, or empty when it is not ours
  bool writable_ = false;         // it may be written over
  bool is_out_ = false;           // it is `out_`
  Tensor received_;               // what the collective fills that runs; empty: none does
  Scratch packed_, place_;        // what it sends and fills when they are ours
  comm::Ticket ticket_;           // declared last: memory outlives what uses it
};

/// Starts to move `in` (packed, from.local(rank)) from layout `from` to layout `to`, by the steps of mesh.route().
/// Memory is taken from the arena and given back as soon as it is used. Steps that change no places in memory (B→P on
/// coordinate 0, sums) work in place when `in` is a handle. `out` (packed, to.local(rank)), when given, receives the
/// result. The backward pass of from→to is the move gradient_layout(to)→gradient_layout(from).
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in,
                   const Tensor& out = {});
/// The same without touching `in`, which somebody else owns.
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in,
                   const Tensor& out = {});
/// Starts a move that writes over `inout` itself: for moves that keep each rank's elements in place, such as sums.
Transit start_move_in_place(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to,
                            const Tensor& inout);

/// Moves at once and waits. When from == to it returns the handle itself.
Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in);
/// The same without touching `in`, which somebody else owns. Empty when from == to: use `in` itself.
Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in);

}  // namespace trainer::mesh
