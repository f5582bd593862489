#pragma once
// Kernels of ops/embedding.h for one instruction set; tables are indexed by compute dtype (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

struct EmbeddingKernels {
  /// y[0 … cols) = token + position; null means zeros. y may be either.
  void (*look_up[3])(const void* token, const void* position, void* y, int64_t cols);
  /// sum[0 … cols) (+)= Σ_i dy[rows[i]] in order; row i is rows[i], or first + i·stride if rows is null. Without
  /// accumulate, and without rows, the sum is 0.
  void (*gather_sum[3])(const void* dy, int64_t ld, const int32_t* rows, int64_t first, int64_t stride, int64_t count,
                        void* sum, bool accumulate, int64_t cols);
};
TRAINER_FOR_EACH_ISA(extern const EmbeddingKernels embedding_kernels;)

}  // namespace trainer::ops
