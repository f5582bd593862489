#pragma once
// Weight and bias of a linear. The parts (q, k, v; gate, up) lie side by side in one local matrix, and their biases in
// one vector. Weights does what every strategy's linear does with them on one rank.
#include <vector>

#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "parallel/strategy.h"
#include "params/grad_sink.h"

namespace trainer::parallel {

class Weights {
 public:
  /// Where a part is stored, and along which axes ranks have partial sums of its gradient.
  struct Placed {
    mesh::Layout layout;
    AxisSet sum_over = 0;
  };
  /// `place_weight(part, whole)` and `place_bias(part, whole)` return how a part is Placed, given its layout on one
  /// rank.
  template <typename PlaceWeight, typename PlaceBias>
  Weights(ParamStore& store, int group, const LinearSpec& spec, PlaceWeight place_weight, PlaceBias place_bias)
      : store_(store) {
    std::vector<params::Part> weights, biases;
    for (const LinearPart& part : spec.parts) {
      const Placed matrix = place_weight(part, store.replicated({spec.in, part.out}));
      weights.push_back(
          {part.name + ".weight", matrix.layout, {params::Init::Kind::normal, spec.init_std}, matrix.sum_over});
      if (!spec.bias) continue;
      const Placed vector = place_bias(part, store.replicated({part.out}));
      biases.push_back({part.name + ".bias", vector.layout, {}, vector.sum_over});
    }
    weight_ = store.add_slot(group, weights);
    if (spec.bias) bias_ = store.add_slot(group, biases);
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

  /// dW (+)= xᵀ·dy and db (+)= Σ_rows dy.
  void add_gradients(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    add_bias_gradient(ex, dy, grads);
    add_weight_gradient(ex, x, dy, grads);
  }
  /// One of the two, where dy of the bias is not that of the weight.
  void add_weight_gradient(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    const params::GradSlot dw = grads.slot(ex, weight_);
    ops::run(ex, ops::Gemm{.a = x, .b = dy, .c = dw.tensor, .trans_a = true, .accumulate = dw.accumulate});
    grads.complete(ex, weight_);  // starts the reduce-scatter of a sharded matrix's gradient
  }
  void add_bias_gradient(Exec& ex, const Tensor& dy, params::GradSink& grads) const {
    if (bias_ < 0) return;
    const params::GradSlot db = grads.slot(ex, bias_);
    ops::run(ex, ops::ColumnSum{dy, db.tensor, db.accumulate});
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

  params::ParamStore& store_;
  params::SlotId weight_ = -1, bias_ = -1;
};

}  // namespace trainer::parallel
