#pragma once
// GridLinear: the linear of every strategy that splits Y [m, n] = X [m, k] · W [k, n] by mesh axes only. Each axis
// splits rows (m), columns (n) or the contraction (k), or none of them.
//
//   axes that split   X            W                         Y            backward: dX        dW
//   rows              rows         copies, or flat shards    rows         rows                partial
//   columns           copies       columns                   columns      partial             columns
//   contraction       columns      rows                      partial      columns             rows
//
// X and dX are in the spread of the previous layer (`from`), Y and dY in that of the next layer (`to`). mesh/route.h
// finds the collectives in between. Bias, activation, residual and dropout are applied in `to`: after the reduction, or
// in the GEMM's epilogue if no communication is needed.
#include "parallel/parts.h"
#include "parallel/weights.h"

namespace trainer::parallel {

class GridLinear final : public Linear {
 public:
  struct Place {
    sharding::LinearSharding grid;
    Spread from, to;  // spreads of X and dX; of Y and dY
  };
  GridLinear(const Ranks& ranks, ParamStore& store, int group, const LinearSpec& spec, const Place& place);

  Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) override;
  Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override;

 private:
  /// The spread of Y after the GEMM, with partial sums, and the one in which the next layer reads it.
  PartSpread product_spread(AxisSet partial) const;
  PartSpread output_spread() const { return {.spread = place_.to, .by_heads = true}; }

  const Ranks ranks_;
  ParamStore& store_;
  const Place place_;
  const int64_t in_;
  const Parts parts_;
  const Weights weights_;
};

}  // namespace trainer::parallel
