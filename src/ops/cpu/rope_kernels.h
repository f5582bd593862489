#pragma once
// Kernels of the rotary position embedding, one table per instruction set. Plain data only, since this header is
// compiled once per instruction set.
#include <cstddef>
#include <cstdint>

#include "device/kernel_sets.h"

namespace trainer::ops {

struct RopeRows {
  std::byte* x;      // first row
  int64_t ld, rows;  // row stride in elements
  int64_t heads, head_dim, rotary;
  const std::byte* table;  // [positions, rotary] accumulator dtype
  int64_t table_ld;
  /// Row r has position position_ids[r]; if that is null, first_position + (first_row + r) % rows_per_sequence.
  int64_t first_row, rows_per_sequence, first_position;
  const int32_t* position_ids;
  bool inverse;
};

/// Kernels by kernel_index of the element type: f64, f32, bf16.
struct RopeKernels {
  void (*rotate[3])(const RopeRows& rows);
};

TRAINER_FOR_EACH_ISA(extern const RopeKernels rope_kernels;)

}  // namespace trainer::ops
