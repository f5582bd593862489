#pragma once
// Kernels of ops/embedding.h for one instruction set; tables are indexed by compute dtype (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

struct EmbeddingKernels {
  /// y[0 … cols) = token + position; null means zeros. y may be token or position.
  void (*look_up[3])(const void* token, const void* position, void* y, int64_t cols);
  /// Sums `count` rows of dy in order into sum[0 … cols). Row i of them is rows[i], or first + i·stride if rows is
  /// null. accumulate: adds to `sum`; if not, no rows yield 0.
  void (*gather_sum[3])(const void* dy, int64_t ld, const int32_t* rows, int64_t first, int64_t stride, int64_t count,
                        void* sum, bool accumulate, int64_t cols);
};
TRAINER_FOR_EACH_ISA(extern const EmbeddingKernels embedding_kernels;)

}  // namespace trainer::ops
