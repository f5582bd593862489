#pragma once
// The element loops of reductions, compiled per instruction set (reduce_kernels.isa.cpp). Tables are indexed by dtype:
// f64, f32, bf16, i32, i64. Integers wrap around; a maximum with NaN is NaN.
#include <cstdint>

#include "base/dtype.h"
#include "device/isa.h"
#include "device/kernel_sets.h"

namespace trainer::comm {

inline constexpr int kReducedTypes = 5;
constexpr bool is_reduced(DType type) { return static_cast<int>(type) < kReducedTypes; }

struct ReduceKernels {
  /// [Reduce][dtype]: out[i] = a[i] ∘ b[i], bf16 rounded to nearest even. `out` may be `a` or `b`.
  void (*combine[2][kReducedTypes])(const void* a, const void* b, void* out, int64_t n);
  /// In the accumulator type, f64 or i64: acc[i] = x[i]; [Reduce] acc[i] = acc[i] ∘ x[i]; out[i] = acc[i].
  void (*load[kReducedTypes])(const void* x, void* acc, int64_t n);
  void (*accumulate[2][kReducedTypes])(const void* x, void* acc, int64_t n);
  void (*store[kReducedTypes])(const void* acc, void* out, int64_t n);
};
TRAINER_FOR_EACH_ISA(extern const ReduceKernels reduce_kernels;)

inline const ReduceKernels& reduce_kernels(device::Isa isa) { return TRAINER_KERNELS(isa, reduce_kernels); }

}  // namespace trainer::comm
