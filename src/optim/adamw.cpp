#include "optim/adamw.h"

#include <cmath>

#include "ops/adamw.h"

namespace trainer::optim {
namespace {

/// Returns the scalars of an update, computed on the host in double precision.
/// Reference: Loshchilov & Hutter 2019, algorithm 2, with the bias corrections folded into step size and denominator.
ops::AdamWScalars scalars_of(const config::Optim& optim, const Update& update, bool decay) {
  const double correction1 = update.agreed[0], correction2 = update.agreed[1];
  return {.beta1 = optim.beta1,
          .beta2 = optim.beta2,
          .inv_sqrt_correction = 1.0 / std::sqrt(correction2),
          .eps = optim.eps,
          .negative_step = -update.lr / correction1,
          .negative_decay = decay ? -update.lr * optim.weight_decay : 0.0,
          .gradient_scale = update.gradient_scale,
          .t = update.t};
}

}  // namespace

std::optional<Agreed> AdamW::agreed(int64_t t) const {
  const auto steps = static_cast<double>(t);
  return Agreed{1.0 - std::pow(optim_.beta1, steps), 1.0 - std::pow(optim_.beta2, steps)};
}

void AdamW::update(Exec& ex, const Update& update, bool decay, const UpdateRange& range) const {
  ops::run(ex, ops::AdamW{.p = range.p,
                          .m = range.states[0],
                          .v = range.states[1],
                          .g = range.g,
                          .compute = range.compute,
                          .scalars = scalars_of(optim_, update, decay),
                          .round_gradient = round_gradients_ && range.g.dtype != DType::bf16,
                          .whole = range.whole});
}

}  // namespace trainer::optim
