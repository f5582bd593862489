#include "parallel/grid_linear.h"

namespace trainer::parallel {

using mesh::Layout;
using mesh::split;
using mesh::Transit;

GridLinear::GridLinear(const Ranks& ranks, ParamStore& store, int group, const LinearSpec& spec, const Place& place)
    : ranks_(ranks),
      place_(place),
      in_(spec.in),
      parts_(ranks, spec.parts),
      weights_(
          store, group, spec,
          [&](const LinearPart& part, const Layout& whole) -> Weights::Placed {
            const sharding::LinearSharding& g = place.grid;
            const AxisSet cols = parts_.cut_axes(part, product_spread(0));
            return {whole.with(g.contraction, split(0)).with(cols, split(1)).with(g.flat, mesh::kFlat),
                    (g.rows & ~g.flat) | (g.cols & ~cols)};
          },
          [&](const LinearPart& part, const Layout& whole) -> Weights::Placed {
            const AxisSet cols = parts_.cut_axes(part, output_spread());
            return {whole.with(cols, split(0)), place.to.rows | (place.to.cols & ~cols)};
          }) {
  if (place.grid.keep) weights_.keep();
}

// Heads stay whole only if the next layer splits them over the same axes.
PartSpread GridLinear::product_spread(AxisSet partial) const {
  const sharding::LinearSharding& g = place_.grid;
  return {.spread = {g.rows, g.cols}, .by_heads = g.cols == place_.to.cols, .partial = partial};
}

void GridLinear::multiply_gathered(Exec& ex, const RowPieces& pieces, RowPieces::Flight& flight, const Tensor& own,
                                   const Tensor& all, const Tensor& c, const ops::Epilogue& epilogue,
                                   bool transposed) const {
  const Weights::InPieces gemm(ex, weights_, all.rows(), all.dtype, transposed);
  pieces.finish_gather(ex, flight, own, all, [&](const Tensor& a, int64_t first) {
    gemm.multiply(ex, a, c.row_range(first, a.rows()), epilogue.row_range(first, a.rows()));
  });
}

RowPieces::Flight GridLinear::multiply_and_reduce(Exec& ex, const RowPieces& pieces, const Tensor& a,
                                                  const Tensor& partial, const Tensor& result, bool transposed) const {
  const Weights::InPieces gemm(ex, weights_, a.rows(), a.dtype, transposed);
  return pieces.reduce(ex, partial, result, [&](int64_t first, int64_t n) {
    gemm.multiply(ex, a.row_range(first, n), partial.row_range(first, n));
  });
}

Scratch GridLinear::forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) {
  const sharding::LinearSharding& g = place_.grid;
  const Layout home = ranks_.layout(place_.from, rows, in_), used = ranks_.layout({g.rows, g.contraction}, rows, in_);
  const PartSpread here = product_spread(g.contraction), there = output_spread();
  const bool reduces = parts_.needs_move(rows, here, there);

  if (!reduces && !fusion.dropout) {
    const auto pieces = RowPieces::of(RowPieces::Kind::gather, ex, ranks_, home, used, x.dtype);
    if (pieces && weights_.can_multiply_in_pieces(ex, pieces->gathered_rows(), x.dtype, false)) {
      const Scratch all = ex.take("redistribute", {pieces->gathered_rows(), weights_.in()}, x.dtype);
      RowPieces::Flight flight = pieces->start_gather(ex, x, all);
      auto [y, epilogue] = weights_.take_output(ex, pieces->gathered_rows(), x.dtype, fusion);
      multiply_gathered(ex, *pieces, flight, x, all, y, epilogue, false);
      return std::move(y);
    }
  }
  const Scratch moved = ranks_.start_move(ex, home, used, x).finish(ex);
  const Tensor& own_x = moved ? moved.tensor() : x;
  if (!reduces) return weights_.multiply_and_finish(ex, own_x, fusion);

  const DType sums = ranks_.sum_type(g.contraction, x.dtype);
  Scratch y = ex.take("linear.partial", {own_x.rows(), weights_.out()}, sums);
  const auto pieces = parts_.row_pieces(RowPieces::Kind::reduction, ex, rows, here, there, sums);
  if (pieces && weights_.can_multiply_in_pieces(ex, own_x.rows(), x.dtype, false)) {
    Scratch result = pieces->take_result(ex, y);
    multiply_and_reduce(ex, *pieces, own_x, y, result, false).join(ex);
    if (result) y = std::move(result);
  } else {
    weights_.multiply(ex, own_x, y);
    y = parts_.start_move(ex, rows, here, there, std::move(y)).finish(ex);
  }
  y = cast_to(ex, std::move(y), x.dtype);
  weights_.finish(ex, y, fusion);
  return y;
}

Scratch GridLinear::backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                             GradSink& grads, bool late) {
  const sharding::LinearSharding& g = place_.grid;
  const PartSpread here = product_spread(0), there = output_spread();
  const Layout home = ranks_.layout(place_.from, rows, in_), used = ranks_.layout({g.rows, g.contraction}, rows, in_);
  const Layout partial = used.with(g.cols, mesh::kPartial);
  const bool arrives = parts_.needs_move(rows, there, here), leaves = partial != home;
  const ops::Epilogue through_activation{
      .act = fusion.act, .pre = fusion.pre, .gradient = fusion.act != ops::Activation::none};
  const DType sums = ranks_.sum_type(leaves ? g.cols : 0, dy.dtype);
  std::optional<RowPieces> arriving, leaving;
  if (arrives && !leaves) arriving = parts_.row_pieces(RowPieces::Kind::gather, ex, rows, there, here, dy.dtype);
  if (leaves) leaving = RowPieces::of(RowPieces::Kind::reduction, ex, ranks_, partial, home, sums);
  const int64_t used_rows = arriving ? arriving->gathered_rows() : used.box()[0];
  if ((arriving || leaving) && !weights_.can_multiply_in_pieces(ex, used_rows, dy.dtype, true)) arriving = leaving = {};

  Scratch dy_moved, dx, dx_result;
  if (arriving) {  // overlaps with dX
    dy_moved = ex.take("redistribute", {arriving->gathered_rows(), weights_.out()}, dy.dtype);
    RowPieces::Flight flight = arriving->start_gather(ex, dy, dy_moved);
    weights_.add_bias_gradient(ex, dy, grads);
    dx = ex.take("linear.dx", {arriving->gathered_rows(), weights_.in()}, dy.dtype);
    multiply_gathered(ex, *arriving, flight, dy, dy_moved, dx, through_activation, true);
  } else {
    Parts::Moving dy_coming = parts_.start_gradient_move(ex, rows, there, here, dy);
    if (arrives) weights_.add_bias_gradient(ex, dy, grads);  // in the spread in which the bias was added
    dy_moved = dy_coming.finish(ex);
  }
  const Tensor& own_dy = arrives ? dy_moved.tensor() : dy;

  Transit x_coming, dx_leaving;
  if (!late) x_coming = ranks_.start_move(ex, home, used, x);  // overlaps with dX
  RowPieces::Flight dx_reducing;
  if (!arriving) {
    dx = ex.take(leaves ? "linear.dx_partial" : "linear.dx", {own_dy.rows(), weights_.in()}, sums);
    if (leaving) {
      dx_result = leaving->take_result(ex, dx);
      dx_reducing = multiply_and_reduce(ex, *leaving, own_dy, dx, dx_result, true);
    } else {
      weights_.multiply(ex, own_dy, dx, leaves ? ops::Epilogue{} : through_activation, true);
    }
  }
  const Scratch x_moved = x_coming.finish(ex);
  const Tensor& own_x = x_moved ? x_moved.tensor() : x;

  if (!leaving) dx_leaving = ranks_.start_move(ex, partial, home, std::move(dx));
  if (!arrives) weights_.add_bias_gradient(ex, dy, grads);
  if (!late) weights_.add_weight_gradient(ex, own_x, own_dy, grads);  // overlaps with the communication of dx
  if (!leaving) {
    dx = dx_leaving.finish(ex);
  } else {
    dx_reducing.join(ex);
    if (dx_result) dx = std::move(dx_result);
  }
  dx = cast_to(ex, std::move(dx), dy.dtype);
  if (leaves && fusion.act != ops::Activation::none)
    ops::run(ex, ops::ActivationBackward{dx, fusion.pre, dx, fusion.act});
  return dx;
}

void GridLinear::weight_gradient(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, GradSink& grads) {
  const sharding::LinearSharding& g = place_.grid;
  const Layout home = ranks_.layout(place_.from, rows, in_), used = ranks_.layout({g.rows, g.contraction}, rows, in_);
  Parts::Moving dy_coming = parts_.start_gradient_move(ex, rows, output_spread(), product_spread(0), dy);
  Transit x_coming = ranks_.start_move(ex, home, used, x);
  const Scratch dy_moved = dy_coming.finish(ex), x_moved = x_coming.finish(ex);
  weights_.add_weight_gradient(ex, x_moved ? x_moved.tensor() : x, dy_moved ? dy_moved.tensor() : dy, grads);
}

}  // namespace trainer::parallel
