#pragma once
// Softmax cross-entropy over a vocabulary that is split over ranks. Logits are never gathered (Shoeybi et al. 2019,
// §3).
#include "comm/communicator.h"
#include "ops/cross_entropy.h"

namespace trainer::parallel {

/// Softmax cross-entropy of rows whose logits are split by columns over `ranks`; null, or one rank: this rank has all
/// columns. `loss` [m] f64 is the same on all of these ranks. dlogits (may be empty) are this rank's columns.
/// `weights`, `scale` and `vocabulary` are as in ops::ShardLoss. Sends 3·m elements and blocks.
struct ShardedLoss {
  ops::CrossEntropyShard shard;
  Tensor weights, loss, dlogits;
  int64_t vocabulary = 0;
  double scale = 1;
};
void run(Exec& ex, comm::Communicator* ranks, const ShardedLoss& op);

/// Returns Σ losses, added in order; 0 on a dry device. Blocks until the device has computed them.
double sum_of_losses(Exec& ex, const Tensor& losses);

}  // namespace trainer::parallel
