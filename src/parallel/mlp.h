#pragma once
// The MLP of one layer. GPT-2: down(gelu(up(x))). Gated: down(silu(gate(x)) ∘ up(x)), with gate ‖ up in one linear.
#include "parallel/strategy.h"

namespace trainer::parallel {

/// Has the same functions as Attention.
class Mlp {
 public:
  struct Saved {
    Scratch pre;  // [N, F] gelu's input, or [N, 2F] gate ‖ up; N, F: this rank's
    Scratch z;    // [N, F] input of the down projection; rebuilt under `selective`
  };
  Mlp(Strategy& strategy, const LayerSpec& spec);

  void forward(Exec& ex, const Batch& batch, Operand x, Saved& saved);
  Scratch output(Exec& ex, const Batch& batch, const ForwardFusion& fusion, Saved& saved) {
    return down_->forward(ex, batch.rows(), saved.z, fusion);
  }
  Scratch backward(Exec& ex, const Batch& batch, Operand dy, Saved& saved, GradSink& grads);
  Scratch input_gradient(Exec& ex, const Batch& batch, const Tensor& d, const Tensor& x, GradSink& grads) {
    return up_->backward(ex, batch.rows(), d, x, {}, grads, batch.late);
  }
  void weight_gradients(Exec& ex, const Batch& batch, const Tensor& dy, const Tensor& d, const Tensor& x,
                        const Saved& saved, GradSink& grads) {
    down_->weight_gradient(ex, batch.rows(), dy, saved.z, grads);
    up_->weight_gradient(ex, batch.rows(), d, x, grads);
  }
  void forget(Saved& saved, config::Recompute recompute) const {
    saved.z.reset();
    if (recompute == config::Recompute::full) saved.pre.reset();
  }

 private:
  void activate(Exec& ex, Saved& saved) const;
  bool gated_;
  std::unique_ptr<Linear> up_, down_;
};

}  // namespace trainer::parallel
