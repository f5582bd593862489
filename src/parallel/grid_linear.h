#pragma once
// GridLinear: the linear Y [m, n] = X [m, k] · W [k, n] as one local GEMM per rank. Each mesh axis splits rows (m),
// columns (n) or the contraction (k), or none of them.
//
//   axes that split   X            W                         Y            backward: dX        dW
//   rows              rows         copies, or flat shards    rows         rows                partial
//   columns           copies       columns                   columns      partial             columns
//   contraction       columns      rows                      partial      columns             rows
//
// X and dX are in the spread of the previous layer (`from`), Y and dY in that of the next layer (`to`). mesh/route.h
// finds the collectives between these spreads and the table's. Bias, activation, residual and dropout are applied in
// `to`: after the reduction, or in the GEMM's epilogue if no communication is needed.
//
// Communication overlaps with GEMMs as follows. Backward, the move of x overlaps with dX, that of dX with dW. A
// collective over blocks of rows is divided into pieces (row_pieces.h), each overlapping with the GEMM of other rows:
//   forward   gather of x with the GEMM of Y; reduction of Y with the GEMM of Y
//   backward  gather of dY with the GEMM of dX; reduction of dX with that of dX, then with that of dW
// dW sums over rows, so its GEMM is never divided.
#include "parallel/parts.h"
#include "parallel/weights.h"

namespace trainer::parallel {

class GridLinear final : public Linear {
 public:
  struct Place {
    sharding::LinearSharding grid;
    Spread from, to;  // the spread of X and dX; the spread of Y and dY
  };
  GridLinear(const Ranks& ranks, ParamStore& store, int group, const LinearSpec& spec, const Place& place);

  Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) override;
  Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads, bool late) override;
  void weight_gradient(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, GradSink& grads) override;

 private:
  /// Return the spread of Y after the GEMM, as partial sums along `partial`, and the spread in which the next layer
  /// reads Y.
  PartSpread product_spread(AxisSet partial) const;
  PartSpread output_spread() const { return {.spread = place_.to, .by_heads = true}; }

  /// Computes c = all·W, or all·Wᵀ, while `own` is gathered into `all`.
  void multiply_gathered(Exec& ex, const RowPieces& pieces, RowPieces::Flight& flight, const Tensor& own,
                         const Tensor& all, const Tensor& c, const ops::Epilogue& epilogue, bool transposed) const;
  /// Computes partial = a·W, or a·Wᵀ, and starts to reduce it into `result`, or in place if that is empty.
  RowPieces::Flight multiply_and_reduce(Exec& ex, const RowPieces& pieces, const Tensor& a, const Tensor& partial,
                                        const Tensor& result, bool transposed) const;

  const Ranks ranks_;
  const Place place_;
  const int64_t in_;
  const Parts parts_;
  const Weights weights_;
};

}  // namespace trainer::parallel
