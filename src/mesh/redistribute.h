#pragma once
// Redistribution: moves a tensor from one layout to another.
#include <optional>

#include "mesh/mesh.h"
#include "tensor/exec.h"

namespace trainer::mesh {

/// A redistribution in flight. start_move() runs the local steps before the route's first collective, and starts that
/// collective. finish() waits for it and runs the remaining steps, blocking on each collective. Compute between the two
/// calls overlaps with the first collective. The input tensor must stay valid until finish(). Every rank of the mesh
/// must call both.
class [[nodiscard]] Transit {
 public:
  Transit() = default;
  /// A redistribution with nothing to do: finish() returns `there`.
  explicit Transit(Scratch&& there) : owned_(std::move(there)) {}

  /// Waits for the collective in flight, without starting the next one.
  void wait(Exec& ex);
  /// Completes the move and returns the tensor in its new layout. Empty if the result is in the caller's memory: in
  /// `out`, or in the input tensor if it was moved in place or not at all.
  Scratch finish(Exec& ex);

 private:
  friend class Mover;
  struct Borrowed {
    void operator()(const void*) const {}
  };
  std::unique_ptr<const Route, Borrowed> route_;  // null: nothing to move
  Mesh* mesh_ = nullptr;
  comm::Purpose purpose_ = comm::Purpose::critical;
  size_t step_ = 0;               // the step in flight, or the next one
  std::optional<Layout> before_;  // the layout of `tensor_`; not created if there is nothing to move: it allocates
  Tensor tensor_, out_;           // the input of step_; the caller's memory for the result, if any
  Scratch owned_;                 // the memory of `tensor_`; empty if the caller owns it
  bool is_out_ = false;           // true if `tensor_` is `out_`
  Tensor received_;               // the output of the collective in flight; empty if there is none
  Scratch packed_, place_;        // memory of the collective's input and output, if Transit owns it
  comm::Ticket ticket_;           // declared last, so that the memory outlives the collective
};

/// Starts to move `in` (packed, from.local(rank)) from layout `from` to layout `to`, with the steps of mesh.route().
/// Memory is taken from the arena and released as soon as it has been read. Steps that do not move elements within
/// memory (B→P on coordinate 0, reductions) work in place if `in` is a Scratch. The result is stored in `out` (packed,
/// to.local(rank)) if that is given.
Transit start_move(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to, Scratch&& in,
                   const Tensor& out = {});
/// Does the same without modifying `in`, which the caller owns.
Transit start_move(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to, const Tensor& in,
                   const Tensor& out = {});
/// Starts a move whose result replaces `inout`; a rank must store the same shape before and after (internal error).
/// Reductions work in place; other steps take memory. If ranks hold copies, the cheapest reduction may be a
/// reduce-scatter of slices followed by an all-gather.
Transit start_move_in_place(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to,
                            const Tensor& inout);

}  // namespace trainer::mesh
