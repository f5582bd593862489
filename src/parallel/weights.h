#pragma once
// Weight and bias of a linear: the parts (q, k, v; gate, up) lie side by side in one local matrix, and so do their
// biases in one vector. What every strategy's linear does with them on one rank.
#include <vector>

#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "params/grad_sink.h"

namespace trainer::parallel {

class Weights {
 public:
  /// `biases` may be empty.
  Weights(params::ParamStore& store, int group, const std::vector<params::Part>& weights,
          const std::vector<params::Part>& biases)
      : store_(store), weight_(store.add_slot(group, weights)) {
    if (!biases.empty()) bias_ = store.add_slot(group, biases);
  }

  int64_t in() const { return store_.box(weight_)[0]; }
  int64_t out() const { return store_.box(weight_)[1]; }
  Tensor bias() const { return bias_ < 0 ? Tensor{} : store_.weight(bias_); }

  /// y = x·W, its epilogue to be filled in.
  ops::Gemm product(Exec& ex, const Tensor& x, const Tensor& y) const {
    return {.a = x, .b = store_.weight(weight_), .c = y, .packed_b = store_.packed(ex, weight_, false)};
  }
  /// dx = dy·Wᵀ, its epilogue to be filled in.
  ops::Gemm transposed(Exec& ex, const Tensor& dy, const Tensor& dx) const {
    return {
        .a = dy, .b = store_.weight(weight_), .c = dx, .trans_b = true, .packed_b = store_.packed(ex, weight_, true)};
  }

  /// dW (+)= xᵀ·dy and, from the same dy, db (+)= Σ_rows dy.
  void gradients(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    const params::GradSlot dw = grads.slot(ex, weight_);
    const params::GradSlot db = bias_ < 0 ? params::GradSlot{} : grads.slot(ex, bias_);
    weight_product(ex, x, dy, dw, db);
    grads.ready(ex, weight_);
    if (bias_ >= 0) grads.ready(ex, bias_);
  }
  /// Either of them alone, where dy of the bias is not that of the weight.
  void weight_gradient(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    weight_product(ex, x, dy, grads.slot(ex, weight_), {});
    grads.ready(ex, weight_);
  }
  void bias_gradient(Exec& ex, const Tensor& dy, params::GradSink& grads) const {
    if (bias_ < 0) return;
    const params::GradSlot db = grads.slot(ex, bias_);
    ops::run(ex, ops::ColumnSum{dy, db.tensor, db.accumulate});
    grads.ready(ex, bias_);
  }

 private:
  static void weight_product(Exec& ex, const Tensor& x, const Tensor& dy, const params::GradSlot& dw,
                             const params::GradSlot& db) {
    ops::run(ex, ops::Gemm{.a = x,
                           .b = dy,
                           .c = dw.tensor,
                           .trans_a = true,
                           .accumulate = dw.accumulate,
                           .b_sums = db.tensor,
                           .add_to_b_sums = db.accumulate});
  }

  params::ParamStore& store_;
  params::SlotId weight_, bias_ = -1;
};

}  // namespace trainer::parallel
