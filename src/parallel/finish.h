#pragma once
// What is left to do with a product whose partial sums have been added over ranks.
#include "ops/finish.h"
#include "parallel/strategy.h"

namespace trainer::parallel {

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
