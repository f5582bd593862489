#pragma once
// Kernels of ops/elementwise.h for one instruction set; tables are indexed by compute dtype (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

/// Row r, column c of the tile has global element index first_index + order[r]·width + c, with r instead of order[r] if
/// `order` is null; residual and bias may be null.
struct DropoutTile {
  const void *x, *residual, *bias;
  void* y;
  int64_t x_ld, residual_ld, y_ld, rows, cols;
  uint64_t first_index, width;
  const int32_t* order;
  uint32_t key0, key1, step, threshold;
  double scale;
};
struct ElementwiseKernels {
  void (*dropout[3])(const DropoutTile& tile);
  void (*scale[3])(void* x, int64_t ld, int64_t rows, int64_t cols, double factor);
  /// sums[c] = Σ_r x[r, c], accumulator type.
  void (*column_sum[3])(const void* x, int64_t ld, int64_t rows, int64_t cols, void* sums);
  /// sums[c] (+)= Σ_b partials[b, c] for first <= c < first + n, in order; accumulator types only.
  void (*partial_sum[2])(const void* partials, int64_t blocks, int64_t ld, void* sums, bool accumulate, int64_t first,
                         int64_t n);
  /// [from][to]
  void (*cast[3][3])(const void* x, void* y, int64_t n);
};
TRAINER_FOR_EACH_ISA(extern const ElementwiseKernels elementwise_kernels;)

}  // namespace trainer::ops
