#pragma once
// Optimus-2D: tensor parallelism on a square of q × q ranks (Xu et al. 2021). It splits both activations and weights by
// rows and by columns, so only vectors are held twice. Its 2.5-dimensional form (Wang et al. 2021) has `depth` such
// squares with the same weights, each for its own sequences.
//
//   N rows of a square, hidden H, heads A, feed-forward F, vocabulary V    on rank (row, col) of its square
//   residual stream, norms                rows over row, columns over col  [N/q, H/q]
//   q, k, v and attention                 rows over row, heads over col    [N/q, 3H/q]
//   feed-forward                          rows over row, columns over col  [N/q, F/q]
//   W of qkv, out, up [in, out]           both over the square             [in/q, out/q]
//   W of down [F, H]                      "auto": [F/q over col, H/q over row];  "paper": as the others
//   biases, norms, positions              columns over col, copies over row
//   table of embedding and head           [V/q over col], 1/q of it over row
//
// A linear moves two of its three matrices; the third stays. With "paper" the result always stays. With "auto" the
// largest stays, which for down is the input. For a linear X [N, K] · W [K, N'] a rank takes part in messages of NK/q +
// KN'/q elements. Where the input stays they are KN'/q + NN'/q. Backward needs twice that, less NN'/q where one dY
// serves both products.
//
// Axis "row" connects the ranks of one column of the square, axis "col" those of one row. Rank = (replica, depth, row,
// col), innermost last, or tiles of neighbours (parallel.node_tile). "data" is replica and depth together: over both,
// gradients are summed and ZeRO-1 splits the state.
//
// Results are those of one rank. The original code differs in three points. It divides each gradient by the tokens of
// one row of ranks. It uses one dropout mask on all ranks, and clips by the norm of one column's vectors.
#include "parallel/strategy.h"

namespace trainer::parallel {

class Optimus2D final : public Strategy {
 public:
  /// "data", or "replica" and "depth" with "data" for both, outermost; then "row" and "col". Tiles cut these two in
  /// factors. So do ranks along "col" when there are more of them than key/value heads: those of "rep" share one.
  static mesh::MeshShape mesh_shape(int world, const config::Parallel& parallel, int64_t kv_heads);

  Optimus2D(mesh::Mesh& mesh, ParamStore& store, const config::Config& config);

  Spread stream(int) const override { return {.rows = row_, .cols = col_}; }
  Spread attention(int layer) const override { return stream(layer); }
  VocabSpread vocab() const override { return {.vocab = col_, .hidden = 0, .flat = row_}; }
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) override;

 private:
  const AxisSet row_, col_;
  const bool ring_, input_stays_;  // whether panels are broadcast step by step; whether down's input stays
};

}  // namespace trainer::parallel
