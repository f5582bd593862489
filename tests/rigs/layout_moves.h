#pragma once
// Redistributions that are finished immediately, and the layouts of gradients.
#include "mesh/redistribute.h"

namespace trainer::mesh {

/// Moves a tensor and waits. When from == to it returns the handle itself.
inline Scratch redistribute(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to,
                            Scratch&& in) {
  return start_move(ex, mesh, purpose, from, to, std::move(in)).finish(ex);
}
/// The same without touching `in`. Empty when from == to: use `in` itself.
inline Scratch redistribute(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to,
                            const Tensor& in) {
  return start_move(ex, mesh, purpose, from, to, in).finish(ex);
}

/// Returns the layout of the gradient of an activation: partial and replicate change places, splits stay. The backward
/// pass of a move from→to is the move gradient_layout(to)→gradient_layout(from).
inline Layout gradient_layout(const Layout& layout) {
  const AxisSet replicated = layout.axes(kReplicate), partial = layout.axes(kPartial);
  return layout.with(replicated, kPartial).with(partial, kReplicate);
}

/// Returns the layout of a parameter's gradient after a backward pass over `tokens`: partial on the axes that split the
/// tokens but not the parameter.
inline Layout gradient_of(const Layout& parameter, const Layout& tokens) {
  const auto split_axes = [](const Layout& layout) {
    AxisSet set = 0;
    for (int dim = 0; dim < layout.shape().dims(); ++dim) set |= layout.axes(split(dim));
    return set;
  };
  return parameter.with(split_axes(tokens) & ~split_axes(parameter), kPartial);
}

}  // namespace trainer::mesh
