#include "ops/cpu/routing_kernels.h"

#include "base/philox.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/math.h"
#include "ops/routing.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename A>
constexpr A kLowest = -static_cast<A>(__builtin_inff());

/// Writes the k experts with the largest logits in descending order. A later expert never takes the place of an equal
/// one, and NaN is less than every number except −∞.
template <typename A>
void choose(const A* logits, int64_t experts, int64_t k, int32_t* chosen) {
  A best[kMostChoices];
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const A x = logits[e] == logits[e] ? logits[e] : kLowest<A>;
    if (count == k && !(x > best[k - 1])) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && x > best[at - 1]; --at) best[at] = best[at - 1], chosen[at] = chosen[at - 1];
    best[at] = x, chosen[at] = static_cast<int32_t>(e);
  }
}

/// ln Σ exp(x). NaN if an element is NaN or +∞, or if all are −∞.
template <typename A>
A log_sum_exp(const A* x, int64_t n) {
  const int64_t whole = n - n % kLanes<A>;
  Vec<A> tops = splat<A>(kLowest<A>);
  for (int64_t i = 0; i < whole; i += kLanes<A>) tops = vmax(load(x + i), tops);
  A top = lane_max<A>(tops);
  for (int64_t i = whole; i < n; ++i) top = x[i] > top ? x[i] : top;
  const Vec<A> shift = splat<A>(top);
  const A sum = sum_of<A>(n, [&](int64_t i, auto tag) { return vexp(get(x + i, tag) - shift); });
  // The sum of finite logits is at least 1 and at most n; portable_log accepts only finite numbers.
  return sum == sum ? top + static_cast<A>(portable_log(static_cast<double>(sum))) : sum;
}

template <typename A>
void route(const RouteRows& op) {
  for (int64_t r = 0; r < op.rows; ++r) {
    const A* const logits = static_cast<const A*>(op.logits) + r * op.experts;
    int32_t* const chosen = op.choices + r * op.per_row;
    A* const weights = static_cast<A*>(op.weights) + r * op.per_row;
    if (!op.given) choose(logits, op.experts, op.per_row, chosen);
    const A lse = log_sum_exp(logits, op.experts);
    static_cast<A*>(op.lse)[r] = lse;
    A shift = lse;
    if (op.normalize) {
      shift = logits[chosen[0]];
      for (int64_t j = 1; j < op.per_row; ++j) shift = logits[chosen[j]] > shift ? logits[chosen[j]] : shift;
    }
    for (int64_t j = 0; j < op.per_row; ++j) weights[j] = logits[chosen[j]] - shift;
    each_vector<A>(op.per_row, [&](int64_t i, auto tag) { put(weights + i, vexp(get(weights + i, tag)), tag); });
    if (!op.normalize) continue;
    A sum = 0;
    for (int64_t j = 0; j < op.per_row; ++j) sum += weights[j];
    for (int64_t j = 0; j < op.per_row; ++j) weights[j] /= sum;
  }
}

template <typename T>
void backward(const RouteBackwardRows& op) {
  using A = AccumulatorOf<T>;
  const int64_t n = op.experts, k = op.per_row;
  const A* const f = static_cast<const A*>(op.f);
  A p[kMostExperts], dl[kMostExperts];
  for (int64_t r = 0; r < op.rows; ++r) {
    const A* const logits = static_cast<const A*>(op.logits) + r * n;
    const A *const w = static_cast<const A*>(op.weights) + r * k, *const dw =
                                                                      static_cast<const A*>(op.dweights) + r * k;
    const int32_t* const chosen = op.choices + r * k;
    const A lse = static_cast<const A*>(op.lse)[r];
    const Vec<A> log_total = splat<A>(lse);
    const A fp = sum_of<A>(n, [&](int64_t i, auto tag) {
      const Vec<A> x = vexp(get(logits + i, tag) - log_total);
      put(p + i, x, tag);
      return get(f + i, tag) * x;
    });
    A weighted = 0;
    for (int64_t j = 0; j < k; ++j) weighted += w[j] * dw[j];
    const A balance = static_cast<A>(op.balance), rest = static_cast<A>(op.z) * lse - (op.normalize ? A(0) : weighted);
    const Vec<A> mean = splat<A>(fp), factor = splat<A>(balance), added = splat<A>(rest);
    each_vector<A>(n, [&](int64_t i, auto tag) {
      put(dl + i, get(p + i, tag) * (factor * (get(f + i, tag) - mean) + added), tag);
    });
    for (int64_t j = 0; j < k; ++j) dl[chosen[j]] += op.normalize ? w[j] * (dw[j] - weighted) : p[chosen[j]] * dw[j];
    T* const out = static_cast<T*>(op.dl) + r * n;
    each_vector<A>(n, [&](int64_t i, auto tag) { put(out + i, get(dl + i, tag), tag); });
    if (op.terms == nullptr) continue;
    A* const terms = static_cast<A*>(op.terms) + 3 * r;
    terms[0] = static_cast<A>(n) * fp;
    terms[1] = lse * lse;
    terms[2] = sum_of<A>(n, [&](int64_t i, auto tag) {  // −p·ln p; 0 where p is 0 and its logit may be −∞
      const Vec<A> x = get(p + i, tag);
      return x == Vec<A>{} ? x : x * (log_total - get(logits + i, tag));
    });
  }
}

/// Y: the type of y and the residual.
template <typename T, typename Y>
void combine(const CombinedRows& op) {
  using A = AccumulatorOf<T>;
  for (int64_t r = 0; r < op.rows; ++r) {
    const T* from[kMostChoices];
    int64_t count = 0;
    for (int64_t j = 0; j < op.per_row; ++j)
      if (const int64_t place = op.place[r * op.per_row + j]; place >= 0)
        from[count++] = static_cast<const T*>(op.from) + place * op.ld_from;
    const Y* const residual =
        op.residual == nullptr ? nullptr : static_cast<const Y*>(op.residual) + r * op.ld_residual;
    Y* const y = static_cast<Y*>(op.y) + r * op.ldy;
    each_vector<A>(op.cols, [&](int64_t i, auto tag) {
      Vec<A> sum = {};
      for (int64_t j = 0; j < count; ++j) sum += get(from[j] + i, tag);
      if (residual != nullptr) sum += get(residual + i, tag);
      put(y + i, sum, tag);
    });
  }
}

}  // namespace

extern const RoutingKernels routing_kernels = {
    {route<double>, route<float>},
    {backward<double>, backward<float>, backward<bf16>},
    {{combine<double, double>, combine<float, float>, combine<bf16, bf16>},
     {combine<double, double>, combine<float, float>, combine<bf16, float>}}};

}  // namespace trainer::ops::TRAINER_ISA
