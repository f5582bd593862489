#pragma once
// Rates of matrix products on this machine, for `trainer bench gemm`.
#include <span>
#include <vector>

#include "measure/op_timing.h"
#include "ops/gemm.h"

namespace trainer::bench {

/// The products of a linear layer with m token rows and a weight [k, n].
struct GemmShape {
  int64_t m = 0, k = 0, n = 0;
};
/// GFLOP/s: y = x·W; dx = dy·Wᵀ; dW += xᵀ·dy into the accumulator dtype. The weight is packed, outside the measurement,
/// where prefers_packed.
struct GemmRate {
  GemmShape shape;
  double forward = 0, dx = 0, dw = 0;
};

/// Normal random operands. Uses the device of ex, not its arena: scratch is planned as in training. At least one
/// repeat. Throws Code::plan when the operands do not fit into memory.
std::vector<GemmRate> bench_gemm(Exec& ex, DType dtype, std::span<const GemmShape> shapes,
                                 const measure::Timing& timing);

/// One of those products in its three forms: as it is, or with an operand transposed first. Gains are the time of the
/// plain product over that of the form: with the transposing copy, and without it. The latter is the bound that no copy
/// can beat.
struct GemmForms {
  GemmShape shape;
  const char* product = "";  // "forward", "dX", "dW"
  double seconds = 0;        // as it is
  struct Gain {
    double with_copy = 0,
           alone = 0;  // 0: the operand is packed for the product beforehand, so that its form is no matter
  };
  Gain a, b;
};
/// The three products of each shape, operands as in bench_gemm; forms take turns; the least time of `repeats`.
std::vector<GemmForms> bench_gemm_forms(Exec& ex, DType dtype, const GemmShape& shape, int repeats);

}  // namespace trainer::bench
