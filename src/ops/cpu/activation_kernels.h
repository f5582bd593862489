#pragma once
// Kernels of ops/activation.h for one instruction set; tables are indexed by compute dtype (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"
#include "ops/activation_kind.h"

namespace trainer::ops {

/// One operand of a tile: its first element and its row stride in elements.
struct TileIn {
  const void* data;
  int64_t ld;
};
struct TileOut {
  void* data;
  int64_t ld;
};
struct ActivationKernels {
  /// bias and pre.data may be null.
  void (*bias_activation[3])(TileIn x, const void* bias, TileOut pre, TileOut y, Activation act, int64_t rows,
                             int64_t cols);
  void (*backward[3])(TileIn dy, TileIn x, TileOut dx, Activation act, int64_t rows, int64_t cols);
  void (*add[3])(TileIn x, TileIn other, const void* bias, TileOut y, int64_t rows, int64_t cols);
  /// weights, and then dweights, may be null.
  void (*gated[3])(TileIn gate, TileIn up, const void* weights, TileOut y, Activation act, int64_t rows, int64_t cols);
  void (*gated_backward[3])(TileIn dy, TileIn gate, TileIn up, const void* weights, TileOut dgate, TileOut dup,
                            void* dweights, Activation act, int64_t rows, int64_t cols);
  void (*sigmoid[2])(TileIn x, TileOut y, int64_t rows, int64_t cols);  // f64, f32
  void (*sigmoid_backward[3])(TileIn dy, TileIn y, TileOut dx, int64_t rows, int64_t cols);
  void (*soft_cap[2])(TileOut x, double cap, int64_t rows, int64_t cols);  // f64, f32
};
// activation_kernels_near: bf16 with math_bf16.h, for use with GEMMs with bf16 panels.
TRAINER_FOR_EACH_ISA(extern const ActivationKernels activation_kernels, activation_kernels_near;)

}  // namespace trainer::ops
