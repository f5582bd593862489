#include "ops/cpu/update_kernels.h"

#include <limits>

#include "ops/cpu/canonical.h"
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// The operations of a rule, each rounded once.
template <typename A>
struct Canonical {
  using Bits = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;
  [[gnu::always_inline]] static Vec<A> fused(Vec<A> a, Vec<A> b, Vec<A> c) { return TRAINER_ISA::fused<A>(a, b, c); }
  [[gnu::always_inline]] static Vec<A> square_root(Vec<A> x) { return TRAINER_ISA::square_root(x); }
  [[gnu::always_inline]] static Vec<A> where_at_least(Vec<A> x, Vec<A> floor, Vec<A> y) {
    // No x, not even NaN, is below -inf: a branch that is always predicted saves the computation of x.
    if (floor[0] == -std::numeric_limits<A>::infinity()) return y;
    return (Vec<A>)(~(Vec<Bits>)(x < floor) & (Vec<Bits>)y);
  }
};

/// Rounds to the nearest bf16, ties to even, NaN to 0x7fff, as if stored and loaded again.
[[gnu::always_inline]] inline Vec<float> rounded_to_bf16(Vec<float> v) {
  const Vec<uint32_t> u = (Vec<uint32_t>)v, nan = (Vec<uint32_t>)(v != v);
  const Vec<uint32_t> rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return (Vec<float>)((nan & 0x7fff0000u) | (~nan & rounded));
}

[[gnu::always_inline]] inline Vec<uint32_t> mixed(Vec<uint32_t> h) {
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  return h ^ (h >> 16);
}
/// Rounds to bf16 stochastically (ops/update.h): the upper halves of what it returns.
[[gnu::always_inline]] inline Vec<uint32_t> rounded_at_random(Vec<float> s, Vec<float> p, uint32_t salt) {
  const Vec<uint32_t> bits = (Vec<uint32_t>)s, hash = mixed(bits ^ mixed((Vec<uint32_t>)p + salt));
  return bits + (hash & 0xffffu);
}
/// Stores a state; `old`: the weights before the update.
template <rules::Narrow narrow, typename A, typename S, typename Tag>
[[gnu::always_inline]] inline void put_state(S* to, Vec<A> s, Vec<A> old, uint32_t salt, Tag tag) {
  if constexpr (sizeof(S) < sizeof(A) && narrow == rules::Narrow::stochastic) {
    put_upper(to, rounded_at_random(s, old, salt), tag);
  } else {
    put(to, s, tag);
  }
}

/// Prefetch distance of an update, in elements.
constexpr int64_t kAhead = 256;  // non-temporal stores of the state, and several vectors at a time, were slower

/// A is the type of the weights, S that of the states, G that of the gradient. `rounds`: an f32 gradient is rounded to
/// bf16 first.
template <typename Rule, typename A, typename S, typename G, bool rounds, size_t... kScalar, size_t... kState>
[[gnu::always_inline]] inline void update(const UpdateCall& call, std::index_sequence<kScalar...>,
                                          std::index_sequence<kState...>) {
  A* const p = static_cast<A*>(call.p);
  S* const states[] = {static_cast<S*>(call.states[kState])..., nullptr};  // a rule may have none
  const G* const g = static_cast<const G*>(call.g);
  const Vec<A> k[] = {splat<A>(static_cast<A>(call.scalars[kScalar]))...};
  const Vec<A> scale = splat<A>(static_cast<A>(call.gradient_scale));
  const uint32_t salt = call.salt;
  const auto gradient = [&](int64_t i, auto tag) __attribute__((always_inline)) {
    if constexpr (rounds) {
      return rounded_to_bf16(get(g + i, tag));
    } else {
      return get(g + i, tag);
    }
  };
  const auto element = [&](int64_t i, auto tag) __attribute__((always_inline)) {
    // Hardware prefetching stops at page boundaries, which several arrays have many of.
    __builtin_prefetch(p + i + kAhead);
    (__builtin_prefetch(states[kState] + i + kAhead), ...);
    __builtin_prefetch(g + i + kAhead);
    const Vec<A> old = get(p + i, tag);
    Vec<A> s[] = {get(states[kState] + i, tag)..., Vec<A>{}};
    const Vec<A> next = Rule::template element<Canonical<A>>(k, old, s, gradient(i, tag) * scale);
    put(p + i, next, tag);
    (put_state<Rule::states[kState].narrow, A>(states[kState] + i, s[kState], old, salt, tag), ...);
    return next;
  };
  if constexpr (sizeof(A) == 4) {
    bf16* const compute = call.compute;
    if (compute != nullptr && call.streams) {
      each_vector<A>(call.n, [&](int64_t i, auto tag) { stream(compute + i, element(i, tag), tag); });
      return stream_fence();
    }
    if (compute != nullptr)
      return each_vector<A>(call.n, [&](int64_t i, auto tag) { put(compute + i, element(i, tag), tag); });
  }
  each_vector<A>(call.n, [&](int64_t i, auto tag) { element(i, tag); });
}

template <typename Rule, typename A, typename S = A, typename G = A, bool rounds = false>
void update(const UpdateCall& call) {
  update<Rule, A, S, G, rounds>(call, std::make_index_sequence<Rule::scalars>(),
                                std::make_index_sequence<Rule::states.size()>());
}
/// A rule without states has no kernels of its own for bf16 states.
template <typename Rule>
using Small = std::conditional_t<Rule::states.size() == 0, float, bf16>;

}  // namespace

// clang-format off
#define TRAINER_ROW(R)                                                                                   \
  {update<rules::R, double>,                                                                             \
   {{update<rules::R, float>, update<rules::R, float, float, float, true>, update<rules::R, float, float, bf16>}, \
    {update<rules::R, float, Small<rules::R>>, update<rules::R, float, Small<rules::R>, float, true>,      \
     update<rules::R, float, Small<rules::R>, bf16>}}},
// clang-format on
extern const UpdateKernels update_kernels = {{TRAINER_RULES(TRAINER_ROW)}};
#undef TRAINER_ROW

}  // namespace trainer::ops::TRAINER_ISA
