#pragma once
// A micro-batch as the model takes it.
#include "parallel/ranks.h"

namespace trainer::parallel {

/// A micro-batch on the device: N = sequences·seq_len token rows, batch-major. Every rank of a replica has all of them,
/// whichever shard of the activations it holds.
struct Batch {
  Tensor ids, targets;  // [N] i32; targets may be empty (generation)
  Tensor weights;       // [N] accumulator type: loss weight of a row, 0 = masked
  int64_t sequences = 0, seq_len = 0;
  int64_t first_sample = 0;    // the first sequence's index in the whole step's batch: selects the dropout masks
  int64_t first_position = 0;  // the position of each sequence's first row (generation with a cache)
  uint32_t step = 0;
  double loss_scale = 1;  // 1 / (unmasked tokens of the whole step)
  bool dropout = false;
  bool cut = true;  // false in generation: the rows are not split over ranks
  Rows rows() const { return {sequences * seq_len, cut}; }
};

}  // namespace trainer::parallel
