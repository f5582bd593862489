#pragma once
// Kernels of ops/norm.h for one instruction set; tables are indexed by compute dtype (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

/// `shift` is added to gains: gain_shift(). Pointers are to the compute type T, except mean and rstd (accumulator
/// type); ld: row stride in elements. bias, mean and rstd may be null. A row has `groups` groups of `cols` columns.
struct NormRows {
  const void *x, *gain, *bias;
  void *y, *mean, *rstd;
  int64_t x_ld, y_ld, cols, groups;
  double eps;
  bool center;
  double shift;
};
/// gain_sum, bias_sum [cols] accumulator type: this block's sums, overwritten; bias_sum may be null.
struct NormGradient {
  const void *dy, *x, *gain, *mean, *rstd, *residual;
  void* dx;
  int64_t dy_ld, x_ld, residual_ld, dx_ld, cols, groups;
  bool center;
  double shift;
};
struct NormKernels {
  void (*forward[3])(const NormRows& op, int64_t first_row, int64_t rows);
  void (*apply[3])(const NormRows& op, int64_t first_row, int64_t rows);
  void (*backward[3])(const NormGradient& op, int64_t first_row, int64_t rows, void* gain_sum, void* bias_sum);
};
TRAINER_FOR_EACH_ISA(extern const NormKernels norm_kernels;)

}  // namespace trainer::ops
