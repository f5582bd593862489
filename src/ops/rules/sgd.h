#pragma once
// Gradient descent, with momentum as in PyTorch: b = mu·b + g, and the direction b, or mu·b + g with Nesterov's. The
// first form, without a state, also applies a direction that was computed elsewhere, such as Muon's.
#include "ops/rules/rule.h"

namespace trainer::ops::rules {

template <bool momentum, bool nesterov>
struct Descent {
  static constexpr const char* name = "sgd";
  static constexpr double flops = momentum ? nesterov ? 8 : 6 : 4;
  static constexpr std::array<StateRule, momentum ? 1 : 0> states = [] {
    if constexpr (momentum)
      return std::array{StateRule{"momentum", Narrow::nearest}};
    else
      return std::array<StateRule, 0>{};
  }();
  /// nstep = −lr; nwd = −lr·weight decay.
  enum : int { mu, nstep, nwd, floor, scalars };
  template <typename M, typename T>
  TRAINER_ELEMENTWISE static T element(const T* k, T p, T* s, T g) {
    T d = g;
    if constexpr (momentum) d = s[0] = M::fused(k[mu], s[0], g);
    if constexpr (nesterov) d = M::fused(k[mu], d, g);
    return M::fused(k[nstep], d, M::fused(M::where_at_least(d * p, k[floor], k[nwd]), p, p));
  }
};
using Sgd = Descent<false, false>;
using SgdMomentum = Descent<true, false>;
using SgdNesterov = Descent<true, true>;

}  // namespace trainer::ops::rules
