#pragma once
// Moving a tensor from one layout to another.
#include <optional>

#include "mesh/mesh.h"
#include "tensor/exec.h"

namespace trainer::mesh {

/// A Transit is a redistribution in flight. start_move() runs the local steps before the route's first collective, and
/// starts that one. finish() waits for it and runs the rest, waiting for each collective immediately. Compute between
/// the two calls overlaps with the first collective. The tensor that is moved must stay in place until finish(). Every
/// rank of the mesh calls both.
class [[nodiscard]] Transit {
 public:
  Transit() = default;
  /// Holds a redistribution with nothing to do: finish() returns `there`.
  explicit Transit(Scratch&& there) : owned_(std::move(there)) {}

  /// Waits for the collective in flight, without starting the next one.
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
  size_t step_ = 0;               // the step that is next or in flight
  std::optional<Layout> before_;  // the layout of `tensor_`; made only to move something, since it allocates
  Tensor tensor_, out_;           // the input of that step; the caller's place for the result, if any
  Scratch owned_;                 // the memory of `tensor_`; empty when the caller owns it
  bool is_out_ = false;           // true if `tensor_` is `out_`
  Tensor received_;               // the output of the collective in flight; empty: there is none
  Scratch packed_, place_;        // the memory of its input and output, if Transit owns it
  comm::Ticket ticket_;           // declared last: memory outlives its users
};

/// Starts to move `in` (packed, from.local(rank)) from layout `from` to layout `to`, by the steps of mesh.route().
/// Memory is taken from the arena and given back as soon as it is used. Steps that do not move elements in memory (B→P
/// on coordinate 0, sums) work in place when `in` is a handle. `out` (packed, to.local(rank)), when given, receives the
/// result.
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in,
                   const Tensor& out = {});
/// Does the same without modifying `in`, which the caller owns.
Transit start_move(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in,
                   const Tensor& out = {});
/// Starts a move whose result replaces `inout`; a rank stores the same shape before and after (internal error).
/// Reductions are done in place; other steps need memory. If ranks hold copies, the cheapest reduction may be a
/// reduce-scatter of slices followed by an all-gather.
Transit start_move_in_place(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to,
                            const Tensor& inout);

}  // namespace trainer::mesh
