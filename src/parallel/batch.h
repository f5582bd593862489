#pragma once
// The input of the model.
#include <span>

#include "parallel/ranks.h"

namespace trainer::parallel {

/// A micro-batch on the device: N = sequences·seq_len token rows, batch-major. Every rank of a replica has all of them,
/// whatever its shard of the activations.
struct Batch {
  Tensor ids, targets;  // [N] i32; targets may be empty (generation)
  Tensor weights;       // [N] accumulator type: loss weight of each row, 0 = masked
  Tensor first_key;     // [N] i32: the row of its sequence at which a row's document begins; empty: all see all rows
  int64_t sequences = 0, seq_len = 0;
  int64_t first_sample = 0;         // index of the first sequence in the whole step's batch: selects the dropout masks
  std::span<const int64_t> starts;  // positions of the sequences' first rows (generation with caches); empty: 0
  uint32_t step = 0;
  double loss_scale = 1;  // 1 / (unmasked tokens of the whole step)
  double z_loss = 0;      // coefficient of the z-loss, in training
  bool dropout = false;
  bool cut = true;  // false in generation: rows are not split over ranks
  Rows rows() const { return {sequences * seq_len, cut}; }
};

}  // namespace trainer::parallel
