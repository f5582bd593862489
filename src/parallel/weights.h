#pragma once
// The local computation of all linears: GEMMs with the weights, and their epilogues. The parts (q, k, v; gate, up) are
// stored side by side in one local matrix, and their biases in one vector.
#include <vector>

#include "ops/activation.h"
#include "parallel/strategy.h"
#include "params/grad_sink.h"

namespace trainer::parallel {

class Weights {
 public:
  /// The layout in which a part is stored, and the axes along which ranks have partial sums of the part's gradient.
  struct Placed {
    mesh::Layout layout;
    AxisSet sum_over = 0;
  };
  /// `place_weight(part, whole)` and `place_bias(part, whole)` return a part's placement, given the replicated layout
  /// `whole`.
  template <typename PlaceWeight, typename PlaceBias>
  Weights(ParamStore& store, int group, const LinearSpec& spec, PlaceWeight place_weight, PlaceBias place_bias)
      : store_(store) {
    std::vector<params::SlotPart> weights, biases;
    for (const LinearPart& part : spec.parts) {
      const Placed matrix = place_weight(part, store.replicated({spec.in, part.width}));
      weights.push_back({.name = part.name + ".weight",
                         .layout = matrix.layout,
                         .init = {params::Init::Kind::normal, spec.init_std},
                         .sum_over = matrix.sum_over,
                         .hidden = true,
                         .whole_matrix = spec.whole_matrix});
      if (!spec.bias) continue;
      const Placed vector = place_bias(part, store.replicated({part.width}));
      biases.push_back({part.name + ".bias", vector.layout, {}, vector.sum_over});
    }
    weight_ = store.add_slot(group, weights);
    if (spec.bias) bias_ = store.add_slot(group, biases);
  }

  /// Makes a sharded matrix, once gathered, stay in memory until the weights change.
  void keep() const { store_.weights().keep(weight_); }

  int64_t in() const { return store_.box(weight_)[0]; }
  int64_t out() const { return store_.box(weight_)[1]; }
  params::SlotId slot() const { return weight_; }
  /// Returns this rank's shard of a matrix in `pieces` flat shards, each of which must be whole rows.
  Tensor piece(int64_t pieces) const { return rows_of(store_.stored_weight(weight_), pieces); }
  /// Returns the destination of that shard's gradient, which the caller must reduce over the ranks.
  params::GradSlot piece_gradient(Exec& ex, params::GradSink& grads, int64_t pieces) const {
    params::GradSlot slot = grads.stored_slot(ex, weight_);
    slot.tensor = rows_of(slot.tensor, pieces);
    return slot;
  }
  Tensor bias() const { return bias_ < 0 ? Tensor{} : store_.weight(bias_); }

  /// Computes c = a·W, or a·Wᵀ, with the epilogue. The matrix stays gathered until the GEMM is done.
  void multiply(Exec& ex, const Tensor& a, const Tensor& c, const ops::Epilogue& epilogue = {},
                bool transposed = false) const {
    const params::WeightCache::Held weight = store_.weights().hold(ex, weight_);
    run_gemm(ex, a, weight, c, epilogue, transposed, store_.weights().packed(ex, weight_, transposed, a.rows()));
  }
  /// Returns whether a GEMM in pieces of rows may pack the whole matrix first: a small matrix, or any that gains from
  /// packing. A GEMM of all rows packs one panel at a time.
  static constexpr int64_t kPanelBytes = int64_t{16} << 20;
  bool can_multiply_in_pieces(const Exec& ex, int64_t rows, DType dtype, bool transposed) const {
    const int64_t k = transposed ? out() : in(), n = transposed ? in() : out();
    return store_.weights().gains_from_packing(weight_, transposed, rows) ||
           ops::packed_bytes(ex.device, dtype, k, n) <= kPanelBytes;
  }
  /// The same GEMM, a few rows at a time. The matrix stays gathered, and on a CPU it is packed once for all rows.
  class InPieces {
   public:
    /// `rows`: of all pieces together; `dtype`: of the operands.
    InPieces(Exec& ex, const Weights& weights, int64_t rows, DType dtype, bool transposed)
        : transposed_(transposed),
          weight_(weights.store_.weights().hold(ex, weights.weight_)),
          packed_(weights.store_.weights().packed(ex, weights.weight_, transposed, rows)) {
      if (packed_) return;
      const int64_t k = transposed ? weights.out() : weights.in(), n = transposed ? weights.in() : weights.out();
      memory_ = ex.take("linear.packed", {ops::packed_bytes(ex.device, dtype, k, n)}, DType::u8);
      packed_ = memory_;
      ops::run(ex, ops::PackB{weight_, packed_, transposed});
    }
    void multiply(Exec& ex, const Tensor& a, const Tensor& c, const ops::Epilogue& epilogue = {}) const {
      run_gemm(ex, a, weight_, c, epilogue, transposed_, packed_);
    }

   private:
    const bool transposed_;
    const params::WeightCache::Held weight_;
    Tensor packed_;
    Scratch memory_;
  };

  /// The result of a linear, and the epilogue of the GEMM that computes it.
  struct Output {
    Scratch y;
    ops::Epilogue epilogue;
  };
  /// Takes memory for y = act(x·W + b), or y = residual + x·W + b, and for fusion.pre. Dropout is not in the epilogue.
  Output take_output(Exec& ex, int64_t rows, DType dtype, const ForwardFusion& fusion) const {
    const Shape shape{rows, out()};
    if (fusion.pre != nullptr) *fusion.pre = ex.take("linear.pre", shape, dtype);
    Output output{ex.take("linear.y", shape, dtype), {.bias = bias(), .act = fusion.act}};
    if (fusion.pre != nullptr) output.epilogue.pre = *fusion.pre;
    if (!fusion.dropout) output.epilogue.residual = fusion.residual;
    return output;
  }
  /// Computes y = act(x·W + b), or y = residual + dropout(x·W + b); stores x·W + b in fusion.pre.
  Scratch multiply_and_finish(Exec& ex, const Tensor& x, const ForwardFusion& fusion) const {
    auto [y, epilogue] = take_output(ex, x.rows(), x.dtype, fusion);
    multiply(ex, x, y, epilogue);
    if (fusion.dropout) ops::run(ex, ops::DropoutAdd{y, fusion.residual, y, *fusion.dropout, {}});
    return std::move(y);
  }
  /// Does the same for a GEMM result y that has been reduced over ranks: y ← act(y + b), with y + b stored in
  /// fusion.pre; or y ← residual + dropout(y + b).
  void finish(Exec& ex, const Tensor& y, const ForwardFusion& fusion) const {
    const bool activates = fusion.act != ops::Activation::none || fusion.pre != nullptr;
    TRAINER_CHECK(!activates || (!fusion.residual && !fusion.dropout),
                  "a linear that writes the residual stream cannot apply an activation");
    if (activates) {
      if (fusion.pre != nullptr) *fusion.pre = ex.take("linear.pre", y.shape, y.dtype);
      const Tensor pre = fusion.pre != nullptr ? fusion.pre->tensor() : Tensor{};
      ops::run(ex, ops::BiasActivation{.x = y, .bias = bias(), .pre = pre, .y = y, .act = fusion.act});
    } else if (fusion.dropout) {
      ops::run(ex, ops::DropoutAdd{y, fusion.residual, y, *fusion.dropout, bias()});
    } else if (fusion.residual) {
      ops::run(ex, ops::Add{.x = y, .other = fusion.residual, .y = y, .bias = bias()});
    } else if (bias_ >= 0) {
      ops::run(ex, ops::BiasActivation{.x = y, .bias = bias(), .pre = {}, .y = y});
    }
  }

  /// Computes dW (+)= xᵀ·dy.
  void add_weight_gradient(Exec& ex, const Tensor& x, const Tensor& dy, params::GradSink& grads) const {
    const params::GradSlot dw = grads.slot(ex, weight_);
    ops::run(ex, ops::Gemm{.a = x, .b = dy, .c = dw.tensor, .trans_a = true, .accumulate = dw.accumulate});
    grads.complete(ex, weight_);  // starts the reduce-scatter of a sharded matrix's gradient
  }
  /// Computes db (+)= Σ_rows dy.
  void add_bias_gradient(Exec& ex, const Tensor& dy, params::GradSink& grads) const {
    if (bias_ < 0) return;
    const params::GradSlot db = grads.slot(ex, bias_);
    ops::run(ex, ops::ColumnSum{dy, db.tensor, db.accumulate});
  }

 private:
  static void run_gemm(Exec& ex, const Tensor& a, const Tensor& weight, const Tensor& c, const ops::Epilogue& epilogue,
                       bool transposed, const Tensor& packed) {
    ops::run(ex,
             ops::Gemm{.a = a, .b = weight, .c = c, .trans_b = transposed, .epilogue = epilogue, .packed_b = packed});
  }
  Tensor rows_of(const Tensor& piece, int64_t pieces) const {
    const Shape box = store_.box(weight_);
    return piece.reshape({box[0] / pieces, box[1]});
  }

  params::ParamStore& store_;
  params::SlotId weight_ = -1, bias_ = -1;
};

}  // namespace trainer::parallel
