#pragma once
// GEMMs of groups of rows with a matrix each: the experts of an MoE layer. The numbers of rows are on the host. Scratch
// memory depends on shapes, types, threads and instruction set, never on the numbers of rows, so that any of them can
// be replayed. An operator on a dry device uses them for its cost only.
#include <span>

#include "tensor/exec.h"

namespace trainer::ops {

/// c[r] = a[r]·op(b_g) for the rows r of group g: rows[0] rows of group 0 come first, then rows[1] of group 1, … The
/// rows after those of the last group are neither read nor written.
///   a [R, K], c [R, N]; b [G·K, N]: a matrix [K, N] per group (trans_b: [G·N, K], a matrix [N, K]); any pitch; one
///   compute type. c must not overlap a.
/// Bits of a group do not depend on threads, and with more than 8 rows not on other groups: they are those of Gemm.
struct GroupedGemm {
  Tensor a, b, c;
  std::span<const int64_t> rows;  // [G]
  bool trans_b = false;
};
void run(Exec& ex, const GroupedGemm& op);

/// dw_g (+)= x_gᵀ·dy_g for each group g of rows. A group without rows: zeros, or if `accumulate` nothing changes.
///   x [R, K], dy [R, N] compute type, dw [G·K, N] accumulator type; any pitch.
struct GroupedWeightGradient {
  Tensor x, dy, dw;
  std::span<const int64_t> rows;  // [G]
  bool accumulate = false;
};
void run(Exec& ex, const GroupedWeightGradient& op);

}  // namespace trainer::ops
