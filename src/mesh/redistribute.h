#pragma once
// Moving a tensor from one layout to another.
#include "mesh/mesh.h"
#include "tensor/exec.h"

namespace trainer::mesh {

/// `in` (packed, from.local(rank)) in layout `from` becomes the result in layout `to`, by the steps of mesh.route().
/// Waits for each. Every rank of the mesh calls. When from == to the handle itself comes back, and steps that change
/// nothing in memory (B→P on coordinate 0, sums) work in place; all other memory is taken from the arena and given back
/// as soon as it is used. The backward pass of from→to is redistribute(dual(to), dual(from)).
Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, Scratch&& in);
/// The same without touching `in`, which somebody else owns. Empty when from == to: use `in` itself.
Scratch redistribute(Exec& ex, Mesh& mesh, comm::Lane lane, const Layout& from, const Layout& to, const Tensor& in);

}  // namespace trainer::mesh
