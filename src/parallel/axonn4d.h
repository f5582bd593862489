#pragma once
// AxoNN-4D: three-dimensional tensor parallelism beside data parallelism (Singh et al. 2023, 2024), over axes x, y and
// z. Linears that read the residual stream contract over y and have their columns over x. Those that write it contract
// over x and have their columns over y, so activations need no move within a block. z cuts the token rows (whole
// sequences). Each rank along z stores a flat piece of each matrix's block, which is gathered for use.
//
//   N rows of a replica, hidden H, heads A, feed-forward F          on a rank
//   residual stream, norms            rows over z, columns over y    [N/z, H/y]
//   q, k, v and attention             rows over z, heads over x      [N/z, 3H/x]
//   feed-forward                      rows over z, columns over x    [N/z, F/x]
//   W of qkv and up                   [H/y, ·/x], 1/z of it          gathered over z; Y summed over y, dX over x
//   W of out and down                 [·/x, H/y], 1/z of it          gathered over z; Y summed over x, dX over y
//   table of embedding and head       [V/x, H/y], 1/z of it          logits summed over y, dx over x
//
// Norms gather two values per row over y, forward and backward. Gradients of matrices are added over z each micro-batch
// (to the pieces), those of biases, norms and positions once a step. Degenerate grids are [t, 1, 1]: Megatron-1D
// without sequence parallelism; [1, 1, z]: fully sharded data parallelism.
//
// Results are those of one rank. The public code differs in three points. It does not sum biases over z, normalises
// over a rank's part of a row, and clips by norms that differ by rank.
#include "parallel/strategy.h"

namespace trainer::parallel {

class Axonn4D final : public Strategy {
 public:
  /// "data" is outermost, then x, y and z as parallel.order has it. When x has more ranks than there are key/value
  /// heads, it is "kv" × "rep" with "x" for both. Ranks along "rep" share a key/value head.
  static mesh::MeshShape mesh_shape(int world, const config::Parallel& parallel, int64_t kv_heads);

  Axonn4D(mesh::Mesh& mesh, ParamStore& store, const config::Config& config);

  Spread stream(int) const override { return {.rows = z_, .cols = y_}; }
  Spread attention(int) const override { return {.rows = z_, .cols = x_}; }
  VocabSpread vocab() const override { return {.vocab = x_, .hidden = y_, .flat = z_}; }
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) override;

 private:
  const AxisSet x_, y_, z_;
  const int64_t cache_layers_;
};

}  // namespace trainer::parallel
