#pragma once
// Rotary position embedding (Su et al. 2021), rotate-half order: for i < D/2, angle = pos·theta^(−2i/D):
//   x[i]' = x[i]·cos − x[i + D/2]·sin;  x[i + D/2]' = x[i + D/2]·cos + x[i]·sin
#include "tensor/exec.h"

namespace trainer::ops {

/// table [S, D] accumulator dtype: cos in the first half of a row, sin in the second. Uses portable arithmetic.
void fill_rope_table(const Tensor& table, double theta);

/// Works in place on x [N, heads·D] (a column range of qkv). Row r has position first_position + r % rows_per_sequence.
/// inverse: rotates back (the backward pass).
struct Rope {
  Tensor x, table;
  int64_t head_dim = 0;
  int64_t rows_per_sequence = 0;
  int64_t first_position = 0;
  bool inverse = false;
};
void run(Exec& ex, const Rope& op);

}  // namespace trainer::ops
