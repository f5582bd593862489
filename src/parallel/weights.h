#pragma once
// Weight and bias of a linear. The parts (q, k, v; gate, up) lie side by side in one local matrix, and their biases in
// one vector. Weights does what every strategy's linear does with them on one rank.
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

  /// Keeps a sharded matrix once it is gathered, until the weights change.
  void keep() const { store_.weights().keep(weight_); }

  int64_t in() const { return store_.box(weight_)[0]; }
  int64_t out() const { return store_.box(weight_)[1]; }
  params::SlotId slot() const { return weight_; }
  /// Returns the rows that this rank stores of a matrix in `pieces` flat pieces, each of whole rows.
  Tensor piece(int64_t pieces) const { return rows_of(store_.stored_weight(weight_), pieces); }
  /// Returns where the gradient of those rows goes; the caller reduces it over the ranks.
  params::GradSlot piece_gradient(params::GradSink& grads, int64_t pieces) const {
    params::GradSlot slot = grads.stored_slot(weight_);
    slot.tensor = rows_of(slot.tensor, pieces);
    return slot;
  }
  Tensor bias() const { return bias_ < 0 ? Tensor{} : store_.weight(bias_); }

  /// y = x·W, through the epilogue. The matrix is held for as long as the product takes.
  void multiply(Exec& ex, const Tensor& x, const Tensor& y, const ops::Epilogue& epilogue = {}) const {
    run_product(ex, x, y, epilogue, false);
  }
  /// dx = dy·Wᵀ, through the epilogue.
  void multiply_transposed(Exec& ex, const Tensor& dy, const Tensor& dx, const ops::Epilogue& epilogue = {}) const {
    run_product(ex, dy, dx, epilogue, true);
  }

  /// dW (+)= xᵀ·dy and, from the same dy, db (+)= Σ_rows dy. `dy_sums` is that of BackwardFusion.
  void add_gradients(Exec& ex, const Tensor& x, const Tensor& dy, Scratch* dy_sums, params::GradSink& grads) const {
    if (bias_ < 0 || (dy_sums != nullptr && *dy_sums)) {
      add_bias_gradient(ex, dy, dy_sums, grads);
      return add_weight_gradient(ex, x, dy, grads);
    }
    const params::GradSlot dw = grads.slot(ex, weight_), db = grads.slot(ex, bias_);
    weight_product(ex, x, dy, dw, db, grads.partial_sums(bias_));
  }
  /// Adds one of them alone, where dy of the bias is not that of the weight.
  void add_weight_gradient(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    weight_product(ex, x, dy, grads.slot(ex, weight_), {}, nullptr);
  }
  void add_bias_gradient(Exec& ex, const Tensor& dy, Scratch* dy_sums, params::GradSink& grads) const {
    if (bias_ < 0) return;
    const params::GradSlot db = grads.slot(ex, bias_);
    ops::PartialSums* const later = grads.partial_sums(bias_);
    if (later != nullptr && dy_sums != nullptr && *dy_sums) {
      later->add(std::move(*dy_sums), {{db.tensor, db.accumulate}});
    } else {
      ops::run(ex, ops::ColumnSum{dy, db.tensor, db.accumulate, later});
    }
  }

 private:
  Tensor rows_of(const Tensor& piece, int64_t pieces) const {
    const Shape box = store_.box(weight_);
    return piece.reshape({box[0] / pieces, box[1]});
  }
  void run_product(Exec& ex, const Tensor& a, const Tensor& c, const ops::Epilogue& epilogue, bool transposed) const {
    const params::WeightCache::Held weight = store_.weights().hold(ex, weight_);
    ops::run(ex, ops::Gemm{.a = a,
                           .b = weight,
                           .c = c,
                           .trans_b = transposed,
                           .epilogue = epilogue,
                           .packed_b = store_.weights().packed(ex, weight_, transposed, a.rows())});
  }
  static void weight_product(Exec& ex, const Tensor& x, const Tensor& dy, const params::GradSlot& dw,
                             const params::GradSlot& db, ops::PartialSums* later) {
    ops::run(ex, ops::Gemm{.a = x,
                           .b = dy,
                           .c = dw.tensor,
                           .trans_a = true,
                           .accumulate = dw.accumulate,
                           .b_sums = db.tensor,
                           .add_to_b_sums = db.accumulate,
                           .later = later});
  }

  params::ParamStore& store_;
  params::SlotId weight_, bias_ = -1;
};

}  // namespace trainer::parallel
