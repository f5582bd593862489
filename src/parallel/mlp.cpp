#include "parallel/mlp.h"

#include "ops/activation.h"

namespace trainer::parallel {

ops::Activation operator_activation(const config::Model& model) {
  switch (config::activation_of(model)) {
    case config::Activation::gelu:
      return ops::Activation::gelu;
    case config::Activation::gelu_erf:
      return ops::Activation::gelu_erf;
    case config::Activation::silu:
      break;
  }
  return ops::Activation::silu;
}

DenseMlp::DenseMlp(Strategy& strategy, const LayerSpec& spec)
    : gated_(has_gated_mlp(spec.model)), act_(operator_activation(spec.model)) {
  up_ = strategy.linear(spec.layer, spec.group, spec.linear(Site::up));
  down_ = strategy.linear(spec.layer, spec.group, spec.linear(Site::down));
}

// Computes z from `pre`.
void DenseMlp::activate(Exec& ex, Saved& s) const {
  const Tensor pre = s.pre;
  s.z = ex.take("mlp.z", {pre.rows(), gated_ ? pre.cols() / 2 : pre.cols()}, pre.dtype);
  if (gated_)
    ops::run(ex, ops::GatedForward{gate_of(pre), up_of(pre), s.z, {}, act_});
  else
    ops::run(ex, ops::BiasActivation{.x = pre, .bias = {}, .pre = {}, .y = s.z, .act = act_});
}

void DenseMlp::forward(Exec& ex, const Batch& batch, Operand x, Saved& s) {
  if (gated_) {
    s.pre = up_->forward(ex, batch.rows(), x, {});
    activate(ex, s);
  } else {
    s.z = up_->forward(ex, batch.rows(), x, {.act = act_, .pre = batch.keep ? &s.pre : nullptr, .residual = {}});
  }
  x.owner.reset();
  if (!batch.keep) s.pre.reset();
}

Scratch DenseMlp::backward(Exec& ex, const Batch& batch, Operand dy, Saved& s, GradSink& grads) {
  if (!s.z) activate(ex, s);
  const BackwardFusion through{.act = act_, .pre = s.pre};
  Scratch d = down_->backward(ex, batch.rows(), dy, s.z, gated_ ? BackwardFusion{} : through, grads, batch.late);
  dy.owner.reset();
  if (!batch.late) s.z.reset();
  if (gated_) {
    const Tensor pre = s.pre;  // not needed afterwards
    ops::run(ex, ops::GatedBackward{d, gate_of(pre), up_of(pre), gate_of(pre), up_of(pre), {}, {}, act_});
    d = std::move(s.pre);
  }
  s.pre.reset();
  return d;
}

}  // namespace trainer::parallel
