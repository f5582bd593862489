#pragma once
// What a linear does beside its product. It is done in the product where the product has the whole sum, and after the
// reduction where ranks hold partial sums.
#include "ops/activation.h"
#include "parallel/strategy.h"
#include "parallel/weights.h"

namespace trainer::parallel {

/// Casts x to `type`; returns x itself when it has that type.
inline Scratch cast_to(Exec& ex, Scratch&& x, DType type) {
  if (x.tensor().dtype == type) return std::move(x);
  Scratch y = ex.take("linear.sum", x.tensor().shape, type);
  ops::run(ex, ops::Cast{x, y});
  return y;
}

/// Computes y = act(x·W + b), or y = residual + dropout(x·W + b); x·W + b is kept in fusion.pre.
inline Scratch multiply_and_finish(Exec& ex, const Weights& weights, const Tensor& x, const ForwardFusion& fusion) {
  const Shape shape{x.rows(), weights.out()};
  if (fusion.pre != nullptr) *fusion.pre = ex.take("linear.pre", shape, x.dtype);
  Scratch y = ex.take("linear.y", shape, x.dtype);
  ops::Epilogue epilogue{.bias = weights.bias(), .act = fusion.act};
  if (fusion.pre != nullptr) epilogue.pre = *fusion.pre;
  if (!fusion.dropout) epilogue.residual = fusion.residual;
  weights.multiply(ex, x, y, epilogue);
  if (fusion.dropout) ops::run(ex, ops::DropoutAdd{y, fusion.residual, y, *fusion.dropout, {}});
  return y;
}
/// Returns the epilogue that makes a product dx = (dy·Wᵀ) ∘ act'(pre).
inline ops::Epilogue activation_backward(const BackwardFusion& fusion) {
  return {.act = fusion.act, .pre = fusion.pre, .gradient = fusion.act != ops::Activation::none};
}

/// y ← act(y + bias), y + bias kept in fusion.pre; then y ← residual + dropout(y). bias may be empty.
inline void finish(Exec& ex, const Tensor& y, const Tensor& bias, const ForwardFusion& fusion) {
  const bool activates = fusion.act != ops::Activation::none || fusion.pre != nullptr;
  TRAINER_CHECK(!activates || (!fusion.residual && !fusion.dropout), "an activation on the way into the stream");
  if (activates) {
    if (fusion.pre != nullptr) *fusion.pre = ex.take("linear.pre", y.shape, y.dtype);
    const Tensor pre = fusion.pre != nullptr ? fusion.pre->tensor() : Tensor{};
    ops::run(ex, ops::BiasActivation{.x = y, .bias = bias, .pre = pre, .y = y, .act = fusion.act});
  } else if (fusion.dropout) {
    ops::run(ex, ops::DropoutAdd{.x = y, .residual = fusion.residual, .y = y, .site = *fusion.dropout, .bias = bias});
  } else if (fusion.residual) {
    ops::run(ex, ops::Add{.x = y, .other = fusion.residual, .y = y, .bias = bias});
  } else if (bias) {
    ops::run(ex, ops::BiasActivation{.x = y, .bias = bias, .pre = {}, .y = y});
  }
}

}  // namespace trainer::parallel
