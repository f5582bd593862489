#pragma once
// Rates of matrix products on this machine, for `trainer bench gemm`, and the peak they are a fraction of.
#include <span>
#include <vector>

#include "ops/gemm.h"

namespace trainer::ops {

/// The products of a linear layer with m token rows and a weight [k, n].
struct GemmShape {
  int64_t m = 0, k = 0, n = 0;
};
/// GFLOP/s, medians over the repeats: y = x·W; dx = dy·Wᵀ; dW += xᵀ·dy into the accumulator dtype. The weight is
/// packed, outside the measurement, where prefers_packed.
struct GemmRate {
  GemmShape shape;
  double forward = 0, dx = 0, dw = 0;
};

/// Normal random operands; one call of each product to warm up and `repeats` (at least 1) measured. Uses the device of
/// ex, not its arena: scratch is planned as in training. Throws Code::plan when the operands do not fit into memory.
std::vector<GemmRate> bench_gemm(Exec& ex, DType dtype, std::span<const GemmShape> shapes, int repeats);

/// FLOP/s. CPU: of the matrix-instruction loop of this compute type (AMX tiles or dot products of pairs for bf16 where
/// the device's instruction set has them, else its multiply-adds) on random operands in L1, on all threads; takes about
/// 0.2 s. GPU: of the library's product of large square matrices, the best of several.
double measured_peak_flops(device::Device& device, DType dtype);

}  // namespace trainer::ops
