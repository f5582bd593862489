#pragma once
// The output head of ranks that share a vocabulary: logits are never gathered (Shoeybi et al. 2019, §3).
#include "ops/cross_entropy.h"
#include "parallel/strategy.h"

namespace trainer::parallel {

/// Softmax cross-entropy of rows whose logits are spread over `ranks` by columns. `loss` [m] f64 is the same on all of
/// them; dlogits (may be empty) are this rank's columns. `weights`, `scale`, `vocabulary` as in ops::ShardLoss. Sends
/// 3·m elements; waits.
struct ShardedLoss {
  ops::CrossEntropyShard shard;
  Tensor weights, loss, dlogits;
  int64_t vocabulary = 0;
  double scale = 1;
};
void run(Exec& ex, comm::Communicator& ranks, const ShardedLoss& op);

/// Σ in order; 0 on a dry device.
double sum_of_losses(Exec& ex, const Tensor& losses);

/// Rows of logits that a head forms at a time: enough that a product with the table amortises reading it, few enough to
/// stay a minor part of memory. Of `rows`, `padded` columns; the same on all devices of a kind.
int64_t head_chunk(const device::Device& device, int64_t rows, int64_t padded, DType logits);

}  // namespace trainer::parallel
