#pragma once
// Redistribution of a tensor from one layout to another.
#include <optional>

#include "mesh/mesh.h"
#include "tensor/exec.h"

namespace trainer::mesh {

/// A redistribution in flight. start_move() runs the local steps before the route's first collective, and starts that
/// one. finish() waits for it and runs the remaining steps, blocking on each collective. Computation in between
/// overlaps with the first collective. The tensor must stay in place until finish(). Collective: every rank of the mesh
/// calls both.
class [[nodiscard]] Transit {
 public:
  Transit() = default;
  /// Makes a redistribution without steps: finish() returns `there`.
  explicit Transit(Scratch&& there) : owned_(std::move(there)) {}

  /// Waits for the collective in flight, without starting the next one.
  void wait(Exec& ex);
  /// Completes the redistribution and returns the tensor in its new layout. Empty if the result is in the caller's
  /// memory: in `out`, or in the tensor itself if it was unchanged or redistributed in place.
  Scratch finish(Exec& ex);

 private:
  friend class Mover;
  struct Borrowed {
    void operator()(const void*) const {}
  };
  std::unique_ptr<const Route, Borrowed> route_;  // null: no steps
  Mesh* mesh_ = nullptr;
  comm::Lane lane_ = comm::Lane::critical;
  size_t step_ = 0;               // the next step, or the one in flight
  std::optional<Layout> before_;  // the layout of `tensor_`; made only if there are steps, since it allocates
  Tensor tensor_, out_;           // the input of that step; the caller's memory for the result, if any
  Scratch owned_;                 // the memory of `tensor_`; empty if the caller owns it
  bool writable_ = false;         // true if `tensor_` may be overwritten
  bool is_out_ = false;           // true if `tensor_` is `out_`
  Tensor received_;               // the output of the collective in flight, else empty
  Scratch packed_, place_;        // the memory of its input and output, if Transit owns it
  comm::Ticket ticket_;           // declared last, so that the memory outlives its use
};

/// Starts to redistribute `in` (packed, from.local(rank)) from layout `from` to layout `to`, by the steps of
/// mesh.route(). Memory is taken from the arena and released as soon as possible. Steps that do not change positions in
/// memory (B→P on coordinate 0, reductions) work in place if `in` is a handle. `out` (packed, to.local(rank)), if
/// given, receives the result.
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in,
                   const Tensor& out = {});
/// Does the same without changing `in`, which the caller owns.
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in,
                   const Tensor& out = {});
/// Starts a redistribution that overwrites `inout` itself: for those that keep each rank's elements in place, such as
/// reductions.
Transit start_move_in_place(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to,
                            const Tensor& inout);

}  // namespace trainer::mesh
