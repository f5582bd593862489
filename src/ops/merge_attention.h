#pragma once
// Merging of attention over disjoint sets of keys. With (o, z) a row's output and log-sum-exp over one set:
//   M = max(z1, z2), w = exp(z − M), W = w1 + w2:   o = o1·(w1/W) + o2·(w2/W),  z = M + log(W)
// A row that has seen no key has o = 0 and z = −infinity.
#include "tensor/exec.h"

namespace trainer::ops {

/// Merges `part` into `sum`; with `first`, overwrites `sum` with it. part [b·q_len, A·D] compute or accumulator type;
/// sum [b·q_len, A·D], part_lse and sum_lse [b·A, q_len], packed, accumulator type, as AttentionForward stores them.
/// Uses the maximum, so that nothing overflows. In place: sum may be part if `first`.
struct MergeAttention {
  Tensor part, part_lse, sum, sum_lse;
  int64_t heads = 0, q_len = 0;  // A; queries per sequence
  bool first = false;
};
void run(Exec& ex, const MergeAttention& op);

}  // namespace trainer::ops
