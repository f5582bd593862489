#pragma once
// Rates of attention on this machine, for `trainer bench attention`.
#include "ops/attention.h"

namespace trainer::bench {

/// Medians over the repeats. FLOPs are those of cost(): what causality leaves, 4·D per visible pair forward and 10·D
/// backward (five products; model FLOPs, which leave recomputed scores out, would be 8·D).
struct AttentionRate {
  double forward_seconds = 0, backward_seconds = 0;  // backward 0: q_len != k_len has none
  double forward_gflops = 0, backward_gflops = 0;
};

/// Runs forward and backward on random operands (q, k, v side by side in token rows, as a model has them), once to warm
/// up and `repeats` times measured. Throws Code::plan when the operands do not fit into memory.
AttentionRate bench_attention(Exec& ex, DType dtype, const ops::AttentionShape& shape, int repeats);

}  // namespace trainer::bench
