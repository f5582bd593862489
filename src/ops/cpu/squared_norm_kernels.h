#pragma once
// Kernels of ops/squared_norm.h for one instruction set, indexed by dtype (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

struct SquaredNormKernels {
  /// Returns Σ x² of at most kNormBlock elements.
  double (*square_sum[3])(const void* x, int64_t n);
};
TRAINER_FOR_EACH_ISA(extern const SquaredNormKernels squared_norm_kernels;)

}  // namespace trainer::ops
