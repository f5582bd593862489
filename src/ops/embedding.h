#pragma once
// Token (and learned position) embedding.
#include "tensor/exec.h"

namespace trainer::ops {

/// y[r] = table[ids[r]] + positions[first_position + r % rows_per_sequence] (positions may be empty).
/// ids [N] i32 in [0, V); table [V_padded, H], positions [S, H], y [N, H] compute dtype. Sum in the accumulator type.
struct EmbeddingForward {
  Tensor ids, table, positions, y;
  int64_t rows_per_sequence = 0, first_position = 0;
};
void run(Exec& ex, const EmbeddingForward& op);

/// dtable[id] += Σ dy over rows with that id, in row order (rows sorted by id; no atomics), dpositions[p] (+)= Σ dy.
/// dy [N, H] compute dtype; dtable, dpositions accumulator dtype. With accumulate_* false the whole table is
/// overwritten (rows without tokens become 0).
struct EmbeddingBackward {
  Tensor ids, dy, dtable, dpositions;
  int64_t rows_per_sequence = 0;
  bool accumulate_table = false, accumulate_positions = false;
};
void run(Exec& ex, const EmbeddingBackward& op);

}  // namespace trainer::ops
