#pragma once
// Kernels of ops/split_norm.h for one instruction set; tables are indexed by compute dtype (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

/// x in the compute type; squares and (centred norms only) means [N] in the accumulator type.
struct MomentRows {
  const void* x;
  void *means, *squares;
  int64_t x_ld, cols;
};
/// Pointers are to the compute type T, except mean, rstd, sums and products (accumulator type). mean and sums are null
/// for RMS norms. The first half writes this rank's sums and products [N]; the second reads them summed over all ranks.
struct SplitGradient {
  const void *dy, *x, *gain, *mean, *rstd, *residual;
  void *sums, *products, *dx;
  int64_t dy_ld, x_ld, residual_ld, dx_ld, cols, hidden;
  double shift;  // added to gains: gain_shift()
};
struct SplitNormKernels {
  void (*moments[3])(const MomentRows& op, int64_t first_row, int64_t rows);
  void (*sums[3])(const SplitGradient& op, int64_t first_row, int64_t rows);
  /// gain_sum, bias_sum [cols] accumulator type: this block's sums, overwritten; bias_sum may be null.
  void (*backward[3])(const SplitGradient& op, int64_t first_row, int64_t rows, void* gain_sum, void* bias_sum);
};
TRAINER_FOR_EACH_ISA(extern const SplitNormKernels split_norm_kernels;)

}  // namespace trainer::ops
