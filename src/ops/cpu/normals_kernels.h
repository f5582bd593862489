#pragma once
// Kernels of ops/normals.h for one instruction set.
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

inline constexpr int kMostNormalBlocks = 16;
struct NormalsKernel {
  int64_t blocks;  // blocks of four draws per call
  void (*group)(uint32_t key0, uint32_t key1, uint64_t first_block, double* out);
};
TRAINER_FOR_EACH_ISA(extern const NormalsKernel normals_kernel;)

}  // namespace trainer::ops
