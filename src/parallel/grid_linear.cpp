#include "parallel/grid_linear.h"

namespace trainer::parallel {

using mesh::Layout;
using mesh::split;
using mesh::Transit;

GridLinear::GridLinear(const Ranks& ranks, ParamStore& store, int group, const LinearSpec& spec, const Place& place)
    : ranks_(ranks),
      store_(store),
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

Scratch GridLinear::forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) {
  const sharding::LinearSharding& g = place_.grid;
  const Scratch moved =
      ranks_.start_move(ex, ranks_.layout(place_.from, rows, in_), ranks_.layout({g.rows, g.contraction}, rows, in_), x)
          .finish(ex);
  const Tensor& own_x = moved ? moved.tensor() : x;
  const PartSpread here = product_spread(g.contraction), there = output_spread();
  if (!parts_.needs_move(rows, here, there)) return weights_.multiply_and_finish(ex, own_x, fusion);
  Scratch y = ex.take("linear.partial", {own_x.rows(), weights_.out()}, ranks_.sum_type(g.contraction, x.dtype));
  weights_.multiply(ex, own_x, y);
  y = cast_to(ex, parts_.start_move(ex, rows, here, there, std::move(y)).finish(ex), x.dtype);
  weights_.finish(ex, y, fusion);
  return y;
}

Scratch GridLinear::backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                             GradSink& grads) {
  const sharding::LinearSharding& g = place_.grid;
  const PartSpread here = product_spread(0), there = output_spread();
  const Layout home = ranks_.layout(place_.from, rows, in_), used = ranks_.layout({g.rows, g.contraction}, rows, in_);
  const Layout partial = used.with(g.cols, mesh::kPartial);
  const bool arrives = parts_.needs_move(rows, there, here), leaves = partial != home;

  Parts::Moving dy_coming = parts_.start_gradient_move(ex, rows, there, here, dy);
  if (arrives) weights_.add_bias_gradient(ex, dy, grads);  // in the spread in which the bias was added
  const Scratch dy_moved = dy_coming.finish(ex);
  const Tensor& own_dy = arrives ? dy_moved.tensor() : dy;

  Transit x_coming = ranks_.start_move(ex, home, used, x);
  Scratch dx = ex.take(leaves ? "linear.dx_partial" : "linear.dx", {own_dy.rows(), weights_.in()},
                       ranks_.sum_type(leaves ? g.cols : 0, dy.dtype));
  const ops::Epilogue through_activation{
      .act = fusion.act, .pre = fusion.pre, .gradient = fusion.act != ops::Activation::none};
  weights_.multiply(ex, own_dy, dx, leaves ? ops::Epilogue{} : through_activation, true);  // overlaps the move of x
  const Scratch x_moved = x_coming.finish(ex);
  const Tensor& own_x = x_moved ? x_moved.tensor() : x;

  Transit dx_leaving = ranks_.start_move(ex, partial, home, std::move(dx));
  if (!arrives) weights_.add_bias_gradient(ex, dy, grads);
  weights_.add_weight_gradient(ex, own_x, own_dy, grads);  // overlaps with the communication of dx
  dx = cast_to(ex, dx_leaving.finish(ex), dy.dtype);
  if (leaves && fusion.act != ops::Activation::none) ops::run(ex, ops::GeluBackward{dx, fusion.pre, dx});
  return dx;
}

}  // namespace trainer::parallel
