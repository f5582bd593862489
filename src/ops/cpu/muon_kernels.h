#pragma once
// Kernels of ops/muon.h for one instruction set; tables are indexed by dtype (f64, f32, bf16).
#include <cstdint>

#include "base/dtype.h"
#include "device/kernel_sets.h"

namespace trainer::ops {

struct Strip;

struct MuonKernels {
  void (*momentum[2])(double mu, double scale, bool nesterov, void* m, void* g, int64_t n);
  /// By the types of `flat` and `packed`.
  void (*gather[3][3])(const void* flat, const Strip* strips, int64_t n, void* packed);
  void (*scatter[3][3])(const void* packed, const Strip* strips, int64_t n, double scale, void* flat);
  void (*multiply[3])(void* x, double factor, int64_t n);
  void (*combine[3])(const void* product, const void* x, void* y, double alpha, double beta, int64_t n);
};
TRAINER_FOR_EACH_ISA(extern const MuonKernels muon_kernels;)

}  // namespace trainer::ops
