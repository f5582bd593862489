#include "ops/cpu/adamw_kernels.h"

#include "ops/cpu/canonical.h"
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

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
/// Rounds second moments to bf16 stochastically (ops/adamw.h): the upper halves of what it returns.
[[gnu::always_inline]] inline Vec<uint32_t> rounded_at_random(Vec<float> v, Vec<float> p, uint32_t salt) {
  const Vec<uint32_t> bits = (Vec<uint32_t>)v, hash = mixed(bits ^ mixed((Vec<uint32_t>)p + salt));
  return bits + (hash & 0xffffu);
}

/// Prefetch distance of an update, in elements.
constexpr int64_t kAhead = 256;  // non-temporal stores of the state, and several vectors at a time, were slower

/// A is the type of the weights, M that of the moments, G that of the gradient. `rounds`: an f32 gradient is rounded to
/// bf16 first.
template <typename A, typename M = A, typename G = A, bool rounds = false>
void update(const AdamWConstants& k, void* p_data, void* m_data, void* v_data, const void* g_data, bf16* compute,
            bool streams, int64_t n) {
  A* p = static_cast<A*>(p_data);
  M *m = static_cast<M*>(m_data), *v = static_cast<M*>(v_data);
  const G* g = static_cast<const G*>(g_data);
  auto constant = [](double x) { return splat<A>(static_cast<A>(x)); };
  const Vec<A> b1 = constant(k.b1), b2 = constant(k.b2), ob1 = constant(k.ob1), ob2 = constant(k.ob2);
  const Vec<A> correction = constant(k.inv_sqrt_correction), eps = constant(k.eps), step = constant(k.negative_step);
  const Vec<A> decay = constant(k.negative_decay), scale = constant(k.gradient_scale);
  const auto gradient = [&](int64_t i, auto tag) __attribute__((always_inline)) {
    if constexpr (rounds) {
      return rounded_to_bf16(get(g + i, tag));
    } else {
      return get(g + i, tag);
    }
  };
  auto element = [&](int64_t i, auto tag) {
    // Hardware prefetching stops at page boundaries, which four arrays have many of.
    for (const void* ahead : {static_cast<const void*>(p + i + kAhead), static_cast<const void*>(m + i + kAhead),
                              static_cast<const void*>(v + i + kAhead), static_cast<const void*>(g + i + kAhead)})
      __builtin_prefetch(ahead);
    const Vec<A> x = gradient(i, tag) * scale, old = get(p + i, tag);
    const Vec<A> first = fused<A>(b1, get(m + i, tag), ob1 * x);
    const Vec<A> second = fused<A>(b2, get(v + i, tag), ob2 * x * x);
    const Vec<A> u = first / fused<A>(square_root(second), correction, eps);
    const Vec<A> next = fused<A>(step, u, fused<A>(decay, old, old));
    put(p + i, next, tag);
    put(m + i, first, tag);
    if constexpr (sizeof(M) == sizeof(A)) {
      put(v + i, second, tag);
    } else {
      put_upper(v + i, rounded_at_random(second, old, k.rounding_salt), tag);
    }
    return next;
  };
  if constexpr (sizeof(A) == 4) {
    if (compute != nullptr && streams) {
      each_vector<A>(n, [&](int64_t i, auto tag) { stream(compute + i, element(i, tag), tag); });
      return stream_fence();
    }
    if (compute != nullptr)
      return each_vector<A>(n, [&](int64_t i, auto tag) { put(compute + i, element(i, tag), tag); });
  }
  each_vector<A>(n, [&](int64_t i, auto tag) { element(i, tag); });
}

/// Returns the elements from x on, as many as there are lanes, in f64.
template <typename T>
[[gnu::always_inline]] inline Vec<double> widened(const T* x) {
  typedef T Slice __attribute__((vector_size(kLanes<double> * sizeof(T))));
  Slice slice;
  std::memcpy(&slice, x, sizeof(slice));
  return __builtin_convertvector(slice, Vec<double>);
}
[[gnu::always_inline]] inline Vec<double> widened(const bf16* x) {
  typedef uint16_t Slice __attribute__((vector_size(kLanes<double> * sizeof(bf16))));
  typedef uint32_t Wide __attribute__((vector_size(kLanes<double> * sizeof(float))));
  typedef float Floats __attribute__((vector_size(kLanes<double> * sizeof(float))));
  Slice slice;
  std::memcpy(&slice, x, sizeof(slice));
  return __builtin_convertvector((Floats)(__builtin_convertvector(slice, Wide) << 16), Vec<double>);
}

/// Computes sixteen partial sums, of the elements whose index is 0, 1, … 15 modulo 16, and adds them in a tree: the
/// same additions on every instruction set. Squares of f32 and bf16 are exact in f64.
template <typename T>
double square_sum(const void* data, int64_t n) {
  constexpr int kSums = 16, kVectors = kSums / kLanes<double>;
  const T* x = static_cast<const T*>(data);
  Vec<double> sums[kVectors] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const Vec<double> wide = widened(x + i + j * kLanes<double>);
      sums[j] += wide * wide;
    }
  }
  double lanes[kSums];
  std::memcpy(lanes, sums, sizeof(lanes));
  for (int j = 0; i < n; ++i, ++j) lanes[j] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int width = kSums / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

}  // namespace

extern const AdamWKernels adamw_kernels = {
    update<double>,
    {{update<float>, update<float, float, float, true>, update<float, float, bf16>},
     {update<float, bf16>, update<float, bf16, float, true>, update<float, bf16, bf16>}},
    {square_sum<double>, square_sum<float>, square_sum<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
