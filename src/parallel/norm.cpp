#include "parallel/norm.h"

#include "ops/norm.h"
#include "ops/split_norm.h"

namespace trainer::parallel {

using params::GradSlot;
using params::Init;

Norm::Norm(const Ranks& ranks, params::ParamStore& store, int group, const NormSpec& spec, Spread stream)
    : ranks_(ranks),
      cols_(stream.cols),
      width_(spec.width),
      groups_(spec.groups),
      store_(store),
      center_(spec.center),
      eps_(spec.eps),
      offset_(spec.gain_offset) {
  const mesh::Layout layout = store.replicated({spec.width}).with(stream.cols, mesh::split(0));
  gain_ = store.add_slot(
      group,
      {{spec.name + ".gain", layout, {spec.gain_offset == 0 ? Init::Kind::ones : Init::Kind::zeros, 0}, stream.rows}});
  if (spec.bias) bias_ = store.add_slot(group, {{spec.name + ".bias", layout, {Init::Kind::zeros, 0}, stream.rows}});
}

Scratch Norm::forward(Exec& ex, const Tensor& x, NormStats* stats) {
  Scratch y = ex.take("norm.y", x.shape, x.dtype);
  forward(ex, x, y, stats);
  return y;
}

void Norm::forward(Exec& ex, const Tensor& x, const Tensor& y, NormStats* stats) {
  const bool known = stats != nullptr && stats->rstd;
  NormStats passing;  // split columns require statistics even if the caller does not keep them
  NormStats* const kept = stats == nullptr && is_split() ? &passing : stats;
  if (kept != nullptr && !known) {
    const DType type = accumulator_of(x.dtype);
    if (center_) kept->mean = ex.take("norm.mean", {x.rows() * groups_}, type);
    kept->rstd = ex.take("norm.rstd", {x.rows() * groups_}, type);
  }
  if (is_split() && !known) merge_statistics(ex, x, kept->mean, kept->rstd);
  if (is_split() || known) {
    ops::run(ex, ops::NormApply{x, store_.weight(gain_), bias(), kept->mean, kept->rstd, y, center_, groups_, offset_});
    return;
  }
  ops::NormForward op{.x = x,
                      .gain = store_.weight(gain_),
                      .bias = bias(),
                      .y = y,
                      .eps = eps_,
                      .center = center_,
                      .groups = groups_,
                      .gain_offset = offset_};
  if (kept != nullptr) {
    op.mean = kept->mean;
    op.rstd = kept->rstd;
  }
  ops::run(ex, op);
}

void Norm::merge_statistics(Exec& ex, const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  comm::Communicator& sharers = ranks_.along(cols_);
  const int64_t count = ops::norm_planes(center_) * x.rows();
  const Scratch own = ex.take("norm.moments", {count}, rstd.dtype);
  const Scratch all = ex.take("norm.all_moments", {sharers.size() * count}, rstd.dtype);
  ops::run(ex, ops::NormMoments{x, own, center_});
  sharers.all_gather(ex, own, all).join(ex);
  ops::run(ex, ops::NormMerge{all, mean, rstd, x.cols(), eps_, center_});
}

Scratch Norm::backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                       params::GradSink& grads) {
  Scratch dx = ex.take("norm.dx", x.shape, x.dtype);
  backward(ex, dy, x, stats, residual, dx, grads);
  return dx;
}

void Norm::backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                    const Tensor& dx, params::GradSink& grads) {
  const GradSlot dgain = grads.slot(ex, gain_);
  const GradSlot dbias = bias_ < 0 ? GradSlot{} : grads.slot(ex, bias_);
  const ops::NormBackward op{.dy = dy,
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
                             .accumulate_bias = dbias.accumulate,
                             .groups = groups_,
                             .gain_offset = offset_};
  if (is_split()) {
    const Scratch sums = ex.take("norm.sums", {ops::norm_planes(center_) * x.rows()}, accumulator_of(x.dtype));
    ops::run(ex, ops::SplitNormSums{dy, x, op.gain, op.mean, op.rstd, sums, center_, offset_});
    ranks_.along(cols_).all_reduce(ex, sums).join(ex);
    ops::run(ex, ops::SplitNormBackward{op, sums, width_});
  } else {
    ops::run(ex, op);
  }
}

}  // namespace trainer::parallel
