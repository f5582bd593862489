#pragma once
// The gradients of a linear on one rank: every strategy forms them from what it holds.
#include "ops/gemm.h"
#include "params/grad_sink.h"

namespace trainer::parallel {

/// dW (+)= Xᵀ·dY and, from the same dY, db (+)= Σ_rows dY. x [N, in], dy [N, out]; dw [in, out]; db [out] or empty.
inline void linear_gradient(Exec& ex, const Tensor& x, const Tensor& dy, const params::GradSlot& dw,
                            const params::GradSlot& db) {
  ops::run(ex, ops::Gemm{.a = x,
                         .b = dy,
                         .c = dw.tensor,
                         .trans_a = true,
                         .accumulate = dw.accumulate,
                         .b_sums = db.tensor,
                         .add_to_b_sums = db.accumulate});
}

}  // namespace trainer::parallel
