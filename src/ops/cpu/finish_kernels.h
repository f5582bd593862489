#pragma once
// Kernels of ops/finish.h for one instruction set; tables are indexed by compute dtype (f64, f32, bf16).
#include "device/kernel_sets.h"
#include "ops/cpu/activation_kernels.h"

namespace trainer::ops {

struct FinishKernels {
  /// bias and pre.data may be null.
  void (*bias_activation[3])(TileIn x, const void* bias, TileOut pre, TileOut y, bool gelu, int64_t rows, int64_t cols);
  void (*gelu_backward[3])(TileIn dy, TileIn x, TileOut dx, int64_t rows, int64_t cols);
  void (*add[3])(TileIn x, TileIn other, const void* bias, TileOut y, int64_t rows, int64_t cols);
};
// finish_kernels_near: bf16 by math_bf16.h; beside products of bf16 panels.
TRAINER_FOR_EACH_ISA(extern const FinishKernels finish_kernels, finish_kernels_near;)

}  // namespace trainer::ops
