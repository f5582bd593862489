#include "parallel/norm.h"

#include "ops/norm.h"

namespace trainer::parallel {

using params::GradSlot;
using params::Init;

Norm::Norm(const Ranks& ranks, params::ParamStore& store, int group, const NormSpec& spec, Spread stream)
    : store_(store), center_(spec.center), eps_(spec.eps) {
  TRAINER_CHECK(ranks.size(stream.cols) == 1, "{}: a norm over a hidden dimension that is cut", spec.name);
  const mesh::Layout layout = store.whole({spec.width});
  gain_ = store.add_slot(group, {{spec.name + ".gain", layout, {Init::Kind::ones, 0}, stream.rows}});
  if (spec.bias) bias_ = store.add_slot(group, {{spec.name + ".bias", layout, {Init::Kind::zeros, 0}, stream.rows}});
}

Scratch Norm::forward(Exec& ex, const Tensor& x, NormStats* stats) {
  Scratch y = ex.take("norm.y", x.shape, x.dtype);
  ops::NormForward op{.x = x, .gain = store_.weight(gain_), .bias = bias(), .y = y, .eps = eps_, .center = center_};
  if (stats != nullptr) {
    const DType type = accumulator_of(x.dtype);
    if (center_) stats->mean = ex.take("norm.mean", {x.rows()}, type);
    stats->rstd = ex.take("norm.rstd", {x.rows()}, type);
    op.mean = stats->mean;
    op.rstd = stats->rstd;
  }
  ops::run(ex, op);
  return y;
}

Scratch Norm::apply(Exec& ex, const Tensor& x, const NormStats& stats) {
  Scratch y = ex.take("norm.y", x.shape, x.dtype);
  ops::run(ex, ops::NormApply{x, store_.weight(gain_), bias(), stats.mean, stats.rstd, y, center_});
  return y;
}

Scratch Norm::backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                       params::GradSink& grads) {
  Scratch dx = ex.take("norm.dx", x.shape, x.dtype);
  const GradSlot dgain = grads.slot(ex, gain_);
  const GradSlot dbias = bias_ < 0 ? GradSlot{} : grads.slot(ex, bias_);
  ops::run(ex, ops::NormBackward{.dy = dy,
                                 .x = x,
                                 .gain = store_.weight(gain_),
                                 .mean = stats.mean,
                                 .rstd = stats.rstd,
                                 .residual = residual,
                                 .dx = dx,
                                 .dgain = dgain.tensor,
                                 .dbias = dbias.tensor,
                                 .center = center_,
                                 .accumulate_gain = dgain.accumulate,
                                 .accumulate_bias = dbias.accumulate});
  return dx;
}

}  // namespace trainer::parallel
