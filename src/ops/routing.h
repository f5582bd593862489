#pragma once
// Mixtures of experts apart from their GEMMs (ops/grouped_gemm.h): the router's choices, the order of rows by expert,
// and the router's gradient. Letters: n token rows, E experts, k experts per token. There are no atomics, and sums have
// a fixed order, so results depend only on the operands.
#include "tensor/exec.h"

namespace trainer::ops {

inline constexpr int64_t kMostExperts = 1024, kMostChoices = 32;

/// The experts of each row, and their weights:
///   choices[r, j]  the expert with the j-th largest logit; of equal logits the lower expert first, NaN counts as −∞
///   lse[r]         ln Σ exp(logits[r, e])
///   weights[r, j]  exp(logits[r, c_j] − lse[r]); if `normalize` the softmax over the k chosen logits
///   counts[s, e]   how often rows of sequence s chose expert e: row r is row first_row + r of the micro-batch, whose
///                  sequences have rows_per_count rows (0: all rows are one sequence); 0 for sequences of other ranks.
///                  With `order` [n] i32, it is row order[r] instead
/// logits [n, E], weights [n, k] and lse [n] accumulator type (f64, f32); choices [n, k] and counts [sequences, E] i32,
/// all packed. counts may be empty.
struct Route {
  enum class From : uint8_t {
    logits,
    given,     // choices are read: those of an earlier pass
    balanced,  // choice j of row r is expert (row·k + j) mod E, row = first_row + r or order[r]
  };
  Tensor logits, choices, weights, lse, counts = {};
  From from = From::logits;
  int64_t first_row = 0, rows_per_count = 0;
  bool normalize = false;
  Tensor order = {};
};
void run(Exec& ex, const Route& op);

/// The order of the n·k choices by expert; those of one expert stay in their order. order[i]: the position r·k + j of
/// the i-th choice; place[r·k + j] = i. choices [n, k], order and place [n·k] i32, packed.
struct SortRows {
  Tensor choices, order, place;
  int64_t experts = 0;
};
void run(Exec& ex, const SortRows& op);

/// y[i] = x[index[i] / per_row]; zeros if index[i] < 0. x [n, W] and y [m, W] of one type of any kind, any pitch; index
/// [m] i32.
struct GatherRows {
  Tensor x, index, y;
  int64_t per_row = 1;
};
void run(Exec& ex, const GatherRows& op);

/// y[r] = Σ_j rows[place[r·k + j]] + residual[r], added in this order in the accumulator type and rounded once;
/// negative places are left out. rows [R, W], y and residual [n, W] of one compute type, any pitch; place [n·k] i32;
/// residual may be empty, or y itself.
struct CombineRows {
  Tensor rows, place, y, residual = {};
};
void run(Exec& ex, const CombineRows& op);

/// The gradient of the router's logits, with p = exp(logits − lse):
///   normalize: dl[c_j] = w_j·(dw_j − Σ_i w_i·dw_i), 0 for other experts
///   else:      dl[e] = p_e·(q_e − Σ_i w_i·dw_i), q[c_j] = dw_j, 0 for other experts
///   dl[e] += balance·p_e·(f_e − Σ_i f_i·p_i) + z·lse·p_e,  f_e = counts[sequence of r, e] / (k·counted_rows)
/// and, if `terms` is given, terms[r] = (E·Σ f·p, lse², −Σ p·ln p): the balance loss, the z-loss and the entropy of a
/// row. dweights, weights [n, k], logits [n, E], lse [n] and terms [n, 3] accumulator type; choices [n, k], counts
/// [sequences, E] i32, empty: f = 0; dl [n, E] compute type; all packed. first_row, rows_per_count, order: as in Route;
/// counted_rows: the rows of all ranks that each line of counts has counted.
struct RouteBackward {
  Tensor dweights, logits, lse, choices, weights, counts, dl, terms = {};
  double balance = 0, z = 0;
  int64_t first_row = 0, rows_per_count = 0, counted_rows = 0;
  bool normalize = false;
  Tensor order = {};
};
void run(Exec& ex, const RouteBackward& op);

}  // namespace trainer::ops
