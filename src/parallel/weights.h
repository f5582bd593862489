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

  /// W for products, here until it is dropped (WeightCache::hold).
  class Held {
   public:
    /// y = x·W, its epilogue to be filled in.
    ops::Gemm product(Exec& ex, const Tensor& x, const Tensor& y) const {
      return {.a = x, .b = matrix_, .c = y, .packed_b = weights_.store_.weights().packed(ex, weights_.weight_, false)};
    }
    /// dx = dy·Wᵀ, its epilogue to be filled in.
    ops::Gemm transposed(Exec& ex, const Tensor& dy, const Tensor& dx) const {
      return {.a = dy,
              .b = matrix_,
              .c = dx,
              .trans_b = true,
              .packed_b = weights_.store_.weights().packed(ex, weights_.weight_, true)};
    }

   private:
    friend class Weights;
    Held(Exec& ex, const Weights& weights)
        : weights_(weights), matrix_(weights.store_.weights().hold(ex, weights.weight_)) {}
    const Weights& weights_;
    params::WeightCache::Held matrix_;
  };
  Held hold(Exec& ex) const { return {ex, *this}; }

  /// dW (+)= xᵀ·dy and, from the same dy, db (+)= Σ_rows dy.
  void gradients(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    const params::GradSlot dw = grads.slot(ex, weight_);
    const params::GradSlot db = bias_ < 0 ? params::GradSlot{} : grads.slot(ex, bias_);
    weight_product(ex, x, dy, dw, db);
  }
  /// Either of them alone, where dy of the bias is not that of the weight.
  void weight_gradient(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    weight_product(ex, x, dy, grads.slot(ex, weight_), {});
  }
  void bias_gradient(Exec& ex, const Tensor& dy, params::GradSink& grads) const {
    if (bias_ < 0) return;
    const params::GradSlot db = grads.slot(ex, bias_);
    ops::run(ex, ops::ColumnSum{dy, db.tensor, db.accumulate});
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
