#pragma once
// Activation functions outside the products' epilogues.
#include "ops/gemm.h"

namespace trainer::ops {

/// y = gelu(x), x, y [N, F] compute dtype: rebuilds an epilogue's output from its `pre` (selective recomputation).
struct GeluForward {
  Tensor x, y;
};
void run(Exec& ex, const GeluForward& op);

/// SwiGLU (Shazeer 2020): y = silu(gate) · up, silu(x) = x/(1 + e^−x). gate, up [N, F] (column ranges of one product),
/// y [N, F].
struct SwigluForward {
  Tensor gate, up, y;
};
void run(Exec& ex, const SwigluForward& op);

/// d(gate), d(up) from dy; dgate, dup may be gate, up themselves.
struct SwigluBackward {
  Tensor dy, gate, up, dgate, dup;
};
void run(Exec& ex, const SwigluBackward& op);

}  // namespace trainer::ops
