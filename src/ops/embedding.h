#pragma once
// Token (and learned position) embedding.
#include <span>
#include <vector>

#include "tensor/exec.h"

namespace trainer::ops {

/// The rows of a table that this rank holds: row 0 is token `first_id`; ids >= `vocabulary` are not tokens. By default
/// it holds the whole table.
struct TableShard {
  int64_t first_id = 0, vocabulary = 0;  // vocabulary 0: the number of rows of the table
};

/// y[r] = table[ids[r]] + positions[p] (positions may be empty) with p = position_ids[r]; if position_ids is empty, p =
/// first_position + r % rows_per_sequence. A token whose row is on another rank contributes zeros.
/// ids [N] i32 in [0, V); table [V_padded, H], positions [S, H], y [N, H] compute dtype; position_ids [N] i32. Sum in
/// the accumulator type.
struct EmbeddingForward {
  Tensor ids, table, positions, y;
  int64_t rows_per_sequence = 0, first_position = 0;
  TableShard shard = {};
  Tensor position_ids = {};
};
void run(Exec& ex, const EmbeddingForward& op);

/// y[r] += positions[position_ids[r]]; if position_ids is empty, positions[first_position + (first_row + r) %
/// rows_per_sequence], where row 0 of y is row `first_row` of the batch. If the table is sharded, this is the second
/// half of EmbeddingForward, after the reduction over the shards; it rounds identically.
struct AddPositions {
  Tensor positions, y;
  int64_t rows_per_sequence = 0, first_position = 0, first_row = 0;
  Tensor position_ids = {};
};
void run(Exec& ex, const AddPositions& op);

/// The rows of a batch in ascending order of their tokens, in host memory; rows of the same token are ascending, and
/// rows whose id is not a token of the vocabulary come last. Batches of one size reuse the memory.
struct RowsByToken {
  std::vector<int32_t> rows;
  void sort(std::span<const int32_t> ids, int64_t vocabulary);

 private:
  std::vector<int32_t> next_;  // the place of the next row of each token
};

/// dtable[id] (+)= Σ dy over rows with that id, in row order (no atomics). ids [N] i32; order [N] i32: RowsByToken;
/// dy [N, H] compute dtype; dtable accumulator dtype. Without accumulate the whole table is overwritten (rows without
/// tokens become 0).
struct EmbeddingBackward {
  Tensor ids, order, dy, dtable;
  bool accumulate = false;
  TableShard shard = {};
};
void run(Exec& ex, const EmbeddingBackward& op);

/// dpositions[p] (+)= Σ dy over rows r with (first_row + r) % rows_per_sequence = p, in row order; types as above. With
/// position_ids, EmbeddingBackward computes these sums.
struct PositionsBackward {
  Tensor dy, dpositions;
  int64_t rows_per_sequence = 0, first_row = 0;
  bool accumulate = false;
};
void run(Exec& ex, const PositionsBackward& op);

}  // namespace trainer::ops
