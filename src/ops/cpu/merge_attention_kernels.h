#pragma once
// Kernels of ops/merge_attention.h for one instruction set, by kernel_index of the part's type (f64, f32, bf16).
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

/// All rows of the operands.
struct MergeRows {
  const void *part, *part_lse;
  void *sum, *sum_lse;
  int64_t part_ld, sum_ld;
  int64_t heads, head_dim, q_len;
  bool first;
};
struct MergeAttentionKernels {
  /// Merges rows first_row … first_row + rows − 1.
  void (*merge[3])(const MergeRows& all, int64_t first_row, int64_t rows);
};
TRAINER_FOR_EACH_ISA(extern const MergeAttentionKernels merge_attention_kernels;)

}  // namespace trainer::ops
