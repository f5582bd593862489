#pragma once
// Softmax cross-entropy over a vocabulary that is split over ranks. Logits are never gathered (Shoeybi et al. 2019,
// §3).
#include "comm/communicator.h"
#include "ops/cross_entropy.h"

namespace trainer::parallel {

/// Softmax cross-entropy of m rows whose logits are split by columns over `ranks`; if `ranks` is null or a single rank,
/// this rank has all columns. `loss` [m] f64 is the same on all of these ranks. `dlogits` (may be empty) has this
/// rank's columns. `weights`, `scale`, `vocabulary` and `terms` are as in ops::ShardLoss. Blocks; all-reduces 3·m
/// elements.
struct ShardedLoss {
  ops::CrossEntropyShard shard;
  Tensor weights, loss, dlogits;
  int64_t vocabulary = 0;
  Tensor scale = {};
  ops::LossTerms terms;
};
void run(Exec& ex, comm::Communicator* ranks, const ShardedLoss& op);

/// Returns the sum of `losses`, added in order; 0 on a dry device. Blocks until the device has computed them.
double sum_of_losses(Exec& ex, const Tensor& losses);

}  // namespace trainer::parallel
