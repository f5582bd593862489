#pragma once
// Softmax cross-entropy of one chunk of rows. The head (parallel/) processes chunk by chunk, so that the logits of the
// whole batch are never in memory at the same time.
#include "tensor/exec.h"

namespace trainer::ops {

/// Optional terms of the loss besides the cross-entropy, and what else is known of a row.
struct LossTerms {
  double z = 0;  // z-loss (PaLM): gradients also have those of weights[r]·z·lse², lse = log Σ exp logits[r]; 0: none
  Tensor z_loss;   // [m] f64: weights[r]·z·lse²; empty: not stored
  double cap = 0;  // logits are the outputs of SoftCap with this cap, and dlogits the gradients of its inputs; 0: not
  Tensor margin = {};  // [m] f64: logits[r, target] − the largest logit, 0 if masked; empty: not stored
};

/// logits [m, V_padded] accumulator dtype (columns >= vocab count as −inf), targets [m] i32, weights [m] accumulator
/// dtype (0 masks a row; empty: all 1).
/// loss[r] = weights[r]·(log Σ exp logits[r] − logits[r, target]), [m] f64.
/// dlogits [m, V_padded] compute dtype or empty: weights[r]·scale·(softmax − onehot), 0 in the padding. On a
/// CPU, rows may begin where those of the logits do; on a GPU only when the dtypes agree. scale: [1] f64; empty: 1.
struct CrossEntropy {
  Tensor logits, targets, weights, loss, dlogits;
  int64_t vocab = 0;
  Tensor scale = {};
  LossTerms terms;
};
void run(Exec& ex, const CrossEntropy& op);

/// The same for ranks that split the vocabulary: this rank has columns for tokens first … first + vocab − 1 (followed
/// by padding; vocab may be 0). Three steps, with two reductions over the ranks between them (Megatron-LM, Shoeybi et
/// al. 2019, §3):
///   ShardSums: this rank's part;   all_reduce(max) of largest;
///   ShardRescale: sums relative to the largest of all ranks;   all_reduce(sum) of sums;
///   ShardLoss: loss, and dlogits of these columns.
/// All statistics are f64: largest [m] and sums [2, m]. The sums are Σ exp(logits − largest), and logits[target] −
/// largest on the rank that has the target's column, 0 on other ranks.
struct CrossEntropyShard {
  Tensor logits, targets;
  int64_t first = 0, vocab = 0;
};
struct ShardSums {
  CrossEntropyShard shard;
  Tensor largest, sums;
};
void run(Exec& ex, const ShardSums& op);
struct ShardRescale {
  CrossEntropyShard shard;
  Tensor largest_here, largest, sums;
};
void run(Exec& ex, const ShardRescale& op);
/// weights, loss, dlogits, scale, terms as in CrossEntropy; targets must be below `vocabulary`.
struct ShardLoss {
  CrossEntropyShard shard;
  Tensor largest, sums, weights, loss, dlogits;
  int64_t vocabulary = 0;
  Tensor scale = {};
  LossTerms terms;
};
void run(Exec& ex, const ShardLoss& op);

}  // namespace trainer::ops
