#pragma once
// Kernels of ops/adamw.h for one instruction set; square_sum is indexed by dtype (f64, f32, bf16).
#include <cstdint>

#include "base/dtype.h"
#include "device/kernel_sets.h"

namespace trainer::ops {

/// The scalars of the canonical arithmetic, in double; rounded to the state's type before use.
struct AdamWConstants {
  double b1, b2, ob1, ob2, inv_sqrt_correction, eps, negative_step, negative_decay, gradient_scale;
  uint32_t rounding_salt;
};
struct AdamWKernels {
  /// Updates n elements. `compute` may be null. `streams`: it is written with non-temporal stores, and is aligned to
  /// the size of a cache line.
  using Update = void (*)(const AdamWConstants& k, void* p, void* m, void* v, const void* g, bf16* compute,
                          bool streams, int64_t n);
  Update f64;
  Update f32[2][3];  // [moments: f32, bf16][gradient: f32, f32 rounded to bf16 first, bf16]
  /// Returns Σ x² of at most kNormBlock elements.
  double (*square_sum[3])(const void* x, int64_t n);
};
TRAINER_FOR_EACH_ISA(extern const AdamWKernels adamw_kernels;)

}  // namespace trainer::ops
