#pragma once
// Softmax cross-entropy of one chunk of rows; the head (model/head.cpp) walks the chunks, so that logits of the whole
// batch never exist.
#include "tensor/exec.h"

namespace trainer::ops {

/// logits [m, V_padded] accumulator dtype (columns >= vocab count as −inf), targets [m] i32, weights [m] accumulator
/// dtype (0 masks a row; empty: all 1).
/// loss[r] = weights[r]·(log Σ exp logits[r] − logits[r, target]), [m] f64.
/// dlogits [m, V_padded] compute dtype or empty: weights[r]·scale·(softmax − onehot), 0 in the padding. May share
/// memory with logits when the dtypes agree.
struct CrossEntropy {
  Tensor logits, targets, weights, loss, dlogits;
  int64_t vocab = 0;
  double scale = 1;
};
void run(Exec& ex, const CrossEntropy& op);

}  // namespace trainer::ops
