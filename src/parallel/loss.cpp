#include "parallel/loss.h"

#include "ops/elementwise.h"
#include "tensor/host_copy.h"

namespace trainer::parallel {

void run(Exec& ex, comm::Communicator* ranks, const ShardedLoss& op) {
  if (ranks == nullptr || ranks->size() == 1) {
    return ops::run(ex, ops::CrossEntropy{.logits = op.shard.logits,
                                          .targets = op.shard.targets,
                                          .weights = op.weights,
                                          .loss = op.loss,
                                          .dlogits = op.dlogits,
                                          .vocab = op.vocabulary,
                                          .scale = op.scale,
                                          .terms = op.terms});
  }
  const int64_t rows = op.shard.logits.rows();
  const Scratch here = ex.take("loss.largest_here", {rows}, DType::f64);
  const Scratch largest = ex.take("loss.largest", {rows}, DType::f64);
  const Scratch sums = ex.take("loss.sums", {2, rows}, DType::f64);
  const Tensor flat = sums.tensor().reshape({2 * rows});
  ops::run(ex, ops::ShardSums{op.shard, here, flat});
  ops::run(ex, ops::Copy{here, largest});
  ranks->all_reduce(ex, largest, comm::Reduce::max).join(ex);
  ops::run(ex, ops::ShardRescale{op.shard, here, largest, flat});
  ranks->all_reduce(ex, flat).join(ex);
  ops::run(ex, ops::ShardLoss{.shard = op.shard,
                              .largest = largest,
                              .sums = flat,
                              .weights = op.weights,
                              .loss = op.loss,
                              .dlogits = op.dlogits,
                              .vocabulary = op.vocabulary,
                              .scale = op.scale,
                              .terms = op.terms});
}

double sum_of_losses(Exec& ex, const Tensor& losses) {
  if (ex.device.dry()) return 0;
  const HostCopy here(ex.device, losses);
  double total = 0;
  for (const double value : here.tensor().span<double>()) total += value;
  return total;
}

}  // namespace trainer::parallel
