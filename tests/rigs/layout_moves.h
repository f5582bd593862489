#pragma once
// Blocking redistributions, and the layouts of gradients.
#include "mesh/redistribute.h"

namespace trainer::mesh {

/// Redistributes a tensor and waits. Returns `in` itself if from == to.
inline Scratch redistribute(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to,
                            Scratch&& in) {
  return start_move(ex, mesh, purpose, from, to, std::move(in)).finish(ex);
}
/// Does the same without changing `in`. Returns an empty handle if from == to: use `in`.
inline Scratch redistribute(Exec& ex, Mesh& mesh, comm::Purpose purpose, const Layout& from, const Layout& to,
                            const Tensor& in) {
  return start_move(ex, mesh, purpose, from, to, in).finish(ex);
}

/// Returns the layout of an activation's gradient: partial and replicated axes are swapped, splits stay. The backward
/// pass of the redistribution from→to is gradient_layout(to)→gradient_layout(from).
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
