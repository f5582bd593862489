#pragma once
// Elementwise operators on token rows: dropout with residual, bias gradients, casts, copies.
#include "base/philox.h"
#include "tensor/exec.h"

namespace trainer::ops {

/// The position of a tensor of token rows in the step's whole batch. The mask of an element depends only on (key, step,
/// global element index), so that it is the same in all layouts and when recomputed. Element (row r, column c) has
/// index (first_row + order[r])·width + first_col + c; if `order` [rows] i32 is empty, r takes the place of order[r].
struct DropoutSite {
  double p = 0;         // probability of dropping; kept values are scaled by 1/(1 − p)
  PhiloxKey key{0, 0};  // philox_key(seed, site name)
  uint32_t step = 0;
  int64_t first_row = 0;  // global token row in the step's batch (all micro-batches counted)
  int64_t first_col = 0, width = 0;
  Tensor order = {};
};
/// Returns the smallest Philox draw with which an element is kept.
uint32_t dropout_threshold(double p);

/// y = residual + dropout(x + bias); residual and bias may be empty (then y = dropout(x)). x, residual, y [N, H]; y may
/// be x or residual; bias [H] of the same type.
struct DropoutAdd {
  Tensor x, residual, y;
  DropoutSite site;
  Tensor bias;
};
void run(Exec& ex, const DropoutAdd& op);
// The backward pass, dx = mask(dy)/(1 − p), is DropoutAdd on the gradient without a residual.

/// x = factor · x, in place, in the accumulator type and rounded once. x [N, H] compute dtype. The factor is rounded to
/// the accumulator type.
struct Scale {
  Tensor x;
  double factor = 1;
};
void run(Exec& ex, const Scale& op);

/// sums[c] (+)= Σ_rows x[r, c]: bias gradients. x [N, F] compute dtype, sums [F] accumulator dtype. Sums over
/// row blocks whose size does not depend on threads.
struct ColumnSum {
  Tensor x, sums;
  bool accumulate = false;
};
void run(Exec& ex, const ColumnSum& op);

/// y = convert(x), any two compute types, equal counts, packed. bf16 rounds to nearest even.
struct Cast {
  Tensor x, y;
};
void run(Exec& ex, const Cast& op);

/// y = x over rows of equal length, any pitch, equal dtype (cache appends, gathers of column ranges).
struct Copy {
  Tensor x, y;
};
void run(Exec& ex, const Copy& op);

}  // namespace trainer::ops
