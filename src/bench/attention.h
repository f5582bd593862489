#pragma once
// Rates of attention on this machine, for `trainer bench attention`.
#include "ops/attention.h"
#include "ops/op_timing.h"

namespace trainer::bench {

/// FLOPs as counted by cost(), for visible pairs only: 4·D per pair forward and 10·D backward (five GEMMs). Model
/// FLOPs, which exclude recomputed scores, would be 8·D.
struct AttentionRate {
  double forward_seconds = 0, backward_seconds = 0;  // backward: 0 if q_len != k_len, which is not supported
  double forward_gflops = 0, backward_gflops = 0;
};

/// Runs forward and backward on random operands. q, k and v are side by side in token rows, as in a model. Throws
/// Code::plan if the operands do not fit into memory.
AttentionRate bench_attention(Exec& ex, DType dtype, const ops::AttentionShape& shape, const ops::Timing& timing);

}  // namespace trainer::bench
