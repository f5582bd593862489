#pragma once
// Moving a tensor from one layout to another.
#include <optional>

#include "mesh/mesh.h"
#include "tensor/exec.h"

namespace trainer::mesh {

/// A move under way. start_move() does the local steps before the route's first collective and starts that; finish()
/// waits for it and does the rest, each collective at once. What is computed in between hides the first collective. The
/// tensor that is moved must stay in place until then. Every rank of the mesh calls both.
class [[nodiscard]] Transit {
 public:
  Transit() = default;
  /// Nothing to move.
  explicit Transit(Scratch&& there) : owned_(std::move(there)) {}

  /// Waits for the collective that runs and starts no other.
  void wait(Exec& ex);
  /// The tensor where it was to go. Empty when that is memory of the caller: `out`, or the tensor itself, which was
  /// where it was to go from the beginning, or was moved in place.
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

/// `in` (packed, from.local(rank)) in layout `from` is moved to layout `to`, by the steps of mesh.route(); memory is
/// taken from the arena and given back as soon as it is used, and what changes nothing in memory (B→P on coordinate 0,
/// sums) works in place when `in` is a handle. `out` (packed, to.local(rank)), when given, receives the result. The
/// backward pass of from→to is the move gradient_layout(to)→gradient_layout(from).
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in,
                   const Tensor& out = {});
/// The same without touching `in`, which somebody else owns.
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in,
                   const Tensor& out = {});
/// Over `inout` itself: of moves that keep what each rank stores where it is, such as sums.
Transit start_move_in_place(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to,
                            const Tensor& inout);

/// The whole move at once. When from == to the handle itself comes back.
Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in);
/// The same without touching `in`, which somebody else owns. Empty when from == to: use `in` itself.
Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in);

}  // namespace trainer::mesh
