#include "parallel/local_norm.h"

#include "ops/norm.h"

namespace trainer::parallel {
namespace {

using params::Init;
using params::SlotId;

class LocalNorm final : public Norm {
 public:
  LocalNorm(ParamStore& store, int group, const NormSpec& spec, mesh::AxisSet sum_over)
      : store_(store), center_(spec.center), eps_(spec.eps) {
    const mesh::Layout layout = store.whole({spec.width});
    gain_ = store.add_slot(group, {{spec.name + ".gain", layout, {Init::Kind::ones, 0}, sum_over}});
    if (spec.bias) bias_ = store.add_slot(group, {{spec.name + ".bias", layout, {Init::Kind::zeros, 0}, sum_over}});
  }

  Scratch forward(Exec& ex, const Tensor& x, NormStats* stats) override {
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

  Scratch apply(Exec& ex, const Tensor& x, const NormStats& stats) override {
    Scratch y = ex.take("norm.y", x.shape, x.dtype);
    ops::run(ex, ops::NormApply{x, store_.weight(gain_), bias(), stats.mean, stats.rstd, y, center_});
    return y;
  }

  Scratch backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                   GradSink& grads) override {
    Scratch dx = ex.take("norm.dx", x.shape, x.dtype);
    const params::GradSlot dgain = grads.slot(ex, gain_);
    const params::GradSlot dbias = bias_ < 0 ? params::GradSlot{} : grads.slot(ex, bias_);
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

 private:
  Tensor bias() const { return bias_ < 0 ? Tensor{} : store_.weight(bias_); }
  ParamStore& store_;
  bool center_;
  double eps_;
  SlotId gain_ = -1, bias_ = -1;
};

}  // namespace

std::unique_ptr<Norm> local_norm(ParamStore& store, int group, const NormSpec& spec, mesh::AxisSet sum_over) {
  return std::make_unique<LocalNorm>(store, group, spec, sum_over);
}

}  // namespace trainer::parallel
