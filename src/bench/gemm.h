#pragma once
// Rates of GEMMs on this machine, for `trainer bench gemm`.
#include <span>
#include <vector>

#include "ops/gemm.h"
#include "ops/op_timing.h"

namespace trainer::bench {

/// The GEMMs of a linear layer with m token rows and a weight [k, n].
struct GemmShape {
  int64_t m = 0, k = 0, n = 0;
};
/// GFLOP/s of y = x·W; dx = dy·Wᵀ; dW += xᵀ·dy into the accumulator dtype. The weight is packed if prefers_packed()
/// returns true; the packing is not timed.
struct GemmRate {
  GemmShape shape;
  double forward = 0, dx = 0, dw = 0;
};

/// Measures GEMMs on normally distributed operands. Uses ex's device but not its arena, since scratch is planned as in
/// training. Requires at least one repeat. Throws Code::plan if the operands do not fit into memory.
std::vector<GemmRate> bench_gemm(Exec& ex, DType dtype, std::span<const GemmShape> shapes, const ops::Timing& timing);

}  // namespace trainer::bench
