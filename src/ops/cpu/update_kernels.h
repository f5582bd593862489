#pragma once
// Kernels of ops/update.h for one instruction set.
#include <cstdint>

#include "base/dtype.h"
#include "device/kernel_sets.h"
#include "ops/update.h"

namespace trainer::ops {

/// The operands of a kernel. Scalars are rounded to the type of the weights before use. `compute` may be null.
/// `streams`: it is written with non-temporal stores, and is aligned to the size of a cache line.
struct UpdateCall {
  const double* scalars;
  double gradient_scale;
  uint32_t salt;
  bool streams;
  void* p;
  void* states[kMostStates];
  const void* g;
  bf16* compute;
  int64_t n;
};
struct UpdateKernels {
  using Kernel = void (*)(const UpdateCall& call);
  struct {
    Kernel f64;
    Kernel f32[2][3];  // [states: f32, bf16][gradient: f32, f32 rounded to bf16 first, bf16]
  } rules[kRules];     // by RuleId
};
TRAINER_FOR_EACH_ISA(extern const UpdateKernels update_kernels;)

}  // namespace trainer::ops
