#pragma once
// AdamW (Loshchilov & Hutter 2019), with the bias corrections folded into step size and denominator. Without its
// changes below 2⁻⁹ the second moment would freeze in bf16 if 1 − b2 < 2⁻⁹, so it is rounded stochastically.
#include "ops/rules/rule.h"

namespace trainer::ops::rules {

struct AdamW {
  static constexpr const char* name = "adamw";
  static constexpr double flops = 14;
  static constexpr std::array<StateRule, 2> states{{{"m", Narrow::nearest}, {"v", Narrow::stochastic}}};
  /// ob1 = 1 − b1 and ob2 = 1 − b2; isq2 = 1/sqrt(1 − b2^t); nstep = −lr/(1 − b1^t); nwd = −lr·weight decay.
  enum : int { b1, b2, ob1, ob2, isq2, eps, nstep, nwd, floor, scalars };
  template <typename M, typename T>
  TRAINER_ELEMENTWISE static T element(const T* k, T p, T* s, T g) {
    s[0] = M::fused(k[b1], s[0], k[ob1] * g);
    s[1] = M::fused(k[b2], s[1], k[ob2] * g * g);
    const T u = s[0] / M::fused(M::square_root(s[1]), k[isq2], k[eps]);
    return M::fused(k[nstep], u, M::fused(M::where_at_least(u * p, k[floor], k[nwd]), p, p));
  }
};

}  // namespace trainer::ops::rules
