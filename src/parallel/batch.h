#pragma once
// The input of the model.
#include <span>

#include "parallel/ranks.h"

namespace trainer::parallel {

class Routing;

/// The keys and values of one sequence so far, in one layer, for generation: [capacity, local K·D] on a GPU. On a CPU
/// each head's rows are in one piece, [local K·capacity, D], which decoding reads as long streams.
struct KvCache {
  Tensor keys, values;
  int64_t capacity = 0;  // in rows
  bool by_head = false;
};

/// A micro-batch on the device: N = sequences·seq_len token rows, in their natural order (sequence by sequence) or in
/// that of RowOrder. Every rank of a replica has all of them, whatever its shard of the activations.
struct Batch {
  Tensor ids, targets;  // [N] i32; targets may be empty (generation)
  Tensor weights;       // [N] accumulator type: loss weight of each row, 0 = masked
  Tensor loss_scale;    // [1] f64: 1 / (counted targets of the whole step); empty: 1
  Tensor sorted;        // [N] i32, the first n used: Embedding::sort(); empty without a backward pass
  Tensor first_key;     // [N] i32: the row of its sequence at which a row's document begins; empty: all see all rows
  Tensor order;         // [N] i32 RowOrder::rows(); empty: the order is natural
  /// [N] i32: the position of each row in its sequence, or in its document if learned positions restart with each;
  /// empty: that of the natural order. The first n of sorted_positions are used: Embedding::sort_positions().
  Tensor positions, sorted_positions;
  int64_t sequences = 0, seq_len = 0;
  int64_t first_sample = 0;         // index of the first sequence in the whole step's batch: selects the dropout masks
  std::span<const int64_t> starts;  // positions of the sequences' first rows (generation with caches); empty: 0
  std::span<const KvCache> caches;  // the sequences', in the layer that runs: they receive its keys and values
  uint32_t step = 0;
  double z_loss = 0;  // coefficient of the z-loss, in training
  bool dropout = false;
  bool keep = true;            // a backward pass follows, for which activations are saved
  bool cut = true;             // false in generation: rows are not split over ranks
  bool late = false;           // the backward pass leaves the gradients of weights to Transformer::weight_gradients()
  Routing* routing = nullptr;  // counts what the routers of layers with experts choose; null: not in training
  bool balanced_routing = false;  // debug.balanced_routing
  Rows rows() const { return {sequences * seq_len, cut}; }
};

/// Returns the elements of `all`, one of the batch's tensors [N], for the rows of a tile; empty if `all` is empty.
inline Tensor rows_of(const Tensor& all, const Tile& tile) {
  return all ? all.range(tile.first_row, tile.rows) : Tensor();
}

}  // namespace trainer::parallel
