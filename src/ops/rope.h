#pragma once
// Rotary position embedding (Su et al. 2021), rotate-half order, of the first R of the D features of a head: for
// i < R/2, angle = pos·theta^(−2i/R):
//   x[i]' = x[i]·cos − x[i + R/2]·sin;  x[i + R/2]' = x[i + R/2]·cos + x[i]·sin
//
// Scaling extends the context of a trained model: it changes the frequencies f_i = theta^(−2i/R), and YaRN also
// multiplies cos and sin.
#include <vector>

#include "tensor/exec.h"

namespace trainer::ops {

/// linear (Chen et al. 2023) divides all frequencies by `factor`. llama3 divides frequencies that make fewer than
/// low_freq turns within `original` positions, keeps those that make more than high_freq turns, and interpolates in
/// between. yarn (Peng et al. 2023) also interpolates, linearly in the index of the pair, between the pairs that make
/// beta_fast and beta_slow turns.
struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  double original = 0;                   // the model's context length without scaling
  double low_freq = 1, high_freq = 4;    // llama3
  double beta_fast = 32, beta_slow = 1;  // yarn, as are the following
  double attention = 0;                  // multiplies cos and sin; 0: 0.1·ln(factor) + 1
  bool truncate = true;                  // rounds the ends of the ramp to indices of pairs
};
/// Returns the angles per position of the R/2 pairs.
std::vector<double> rope_frequencies(int64_t rotary, double theta, const RopeScaling& scaling);
/// Returns the factor by which cos and sin are multiplied.
double rope_magnitude(const RopeScaling& scaling);

/// table [S, R] accumulator dtype: cos in the first half of a row, sin in the second. Uses portable arithmetic.
void fill_rope_table(const Tensor& table, double theta, const RopeScaling& scaling = {});

/// Works in place on x [N, heads·D] (a column range of qkv). The table's width says R; other features stay. Row r has
/// position position_ids[r]; if position_ids [N] i32 is empty, first_position + r % rows_per_sequence. inverse:
/// multiplies by the transposed matrix (the backward pass), which rotates back.
struct Rope {
  Tensor x, table;
  int64_t head_dim = 0;
  int64_t rows_per_sequence = 0;
  int64_t first_position = 0;
  bool inverse = false;
  Tensor position_ids = {};
};
void run(Exec& ex, const Rope& op);

}  // namespace trainer::ops
