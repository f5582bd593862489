#include "ops/cpu/cross_entropy_kernels.h"

#include "base/philox.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/math.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Returns log(sum). Sums that are not finite are returned unchanged, since portable_log accepts only finite numbers.
inline double log_of(double sum) { return sum < __builtin_inf() ? portable_log(sum) : sum; }

/// Online softmax: the sum is relative to the largest logit so far, and is scaled down when a larger one follows.
template <typename A>
CrossEntropySums sums_of(const A* logits, int64_t vocab) {
  constexpr int64_t kChunk = 2048;  // a chunk stays in L1 between finding its maximum and summing it
  A largest = logits[0];
  double sum = 0;
  for (int64_t c = 0; c < vocab; c += kChunk) {
    const A* x = logits + c;
    const int64_t n = vocab - c < kChunk ? vocab - c : kChunk, whole = n - n % kLanes<A>;
    Vec<A> tops = splat<A>(largest);
    for (int64_t i = 0; i < whole; i += kLanes<A>) tops = vmax(load(x + i), tops);
    A top = lane_max<A>(tops);
    for (int64_t i = whole; i < n; ++i) top = x[i] > top ? x[i] : top;
    if (top > largest) {
      sum *= static_cast<double>(vexp(splat<A>(largest - top))[0]);
      largest = top;
    }
    const Vec<A> shift = splat<A>(largest);
    sum += static_cast<double>(sum_of<A>(n, [&](int64_t i, auto tag) { return vexp(get(x + i, tag) - shift); }));
  }
  return {static_cast<double>(largest), sum};
}

/// factor·((1 + 2·z·lse)·softmax − onehot), times the slope of the soft cap; target < 0: the target is on a different
/// rank.
template <typename T>
void gradient(const CrossEntropyRow& op, const CrossEntropySums& sums) {
  using A = AccumulatorOf<T>;
  const A* logits = static_cast<const A*>(op.logits);
  T* dlogits = static_cast<T*>(op.dlogits);
  const int64_t vocab = op.vocab, target = op.target;
  const double factor = op.weight * op.scale, lse = op.z == 0 ? 0 : sums.largest + log_of(sums.sum);
  const double grown = op.z == 0 ? factor : factor * (1 + 2 * op.z * lse);
  const Vec<A> shift = splat<A>(static_cast<A>(sums.largest)), scale = splat<A>(static_cast<A>(grown / sums.sum));
  if (op.cap > 0) {
    const A steep = static_cast<A>(1 / op.cap);
    const auto slope = [&](Vec<A> x) __attribute__((always_inline)) {
      const Vec<A> share = x * steep;
      return A(1) - share * share;
    };
    Vec<A> capped = {};
    if (target >= 0) {
      const Vec<A> x = splat<A>(logits[target]);
      capped = (vexp(x - shift) * scale - static_cast<A>(factor)) * slope(x);
    }
    each_vector<A>(vocab, [&](int64_t i, auto tag) {
      const Vec<A> x = get(logits + i, tag);
      put(dlogits + i, vexp(x - shift) * scale * slope(x), tag);
    });
    if (target >= 0) put(dlogits + target, capped, Part{1});
    __builtin_memset(dlogits + vocab, 0, static_cast<size_t>(op.padded - vocab) * sizeof(T));
    return;
  }
  Vec<A> at_target = {};
  if (target >= 0) at_target = vexp(splat<A>(logits[target]) - shift) * scale - static_cast<A>(factor);
  each_vector<A>(vocab,
                 [&](int64_t i, auto tag) { put(dlogits + i, vexp(get(logits + i, tag) - shift) * scale, tag); });
  if (target >= 0) put(dlogits + target, at_target, Part{1});
  __builtin_memset(dlogits + vocab, 0, static_cast<size_t>(op.padded - vocab) * sizeof(T));
}

template <typename T>
double row(const CrossEntropyRow& op) {
  using A = AccumulatorOf<T>;
  const A* logits = static_cast<const A*>(op.logits);
  T* dlogits = static_cast<T*>(op.dlogits);
  if (op.weight == 0) {
    if (dlogits != nullptr) __builtin_memset(dlogits, 0, static_cast<size_t>(op.padded) * sizeof(T));
    if (op.z_loss != nullptr) *op.z_loss = 0;
    if (op.margin != nullptr) *op.margin = 0;
    return 0;
  }
  const CrossEntropySums sums = sums_of(logits, op.vocab);
  const double log_sum = log_of(sums.sum), lse = sums.largest + log_sum;
  const double loss = op.weight * (log_sum + (sums.largest - static_cast<double>(logits[op.target])));
  if (op.z_loss != nullptr) *op.z_loss = op.weight * op.z * lse * lse;
  if (op.margin != nullptr) *op.margin = static_cast<double>(logits[op.target]) - sums.largest;
  if (dlogits != nullptr) gradient<T>(op, sums);
  return loss;
}

template <typename A>
CrossEntropySums shard_sums(const void* logits, int64_t vocab) {
  return sums_of(static_cast<const A*>(logits), vocab);
}

template <typename T>
void shard_gradient(const CrossEntropyRow& op, const CrossEntropySums& sums) {
  T* dlogits = static_cast<T*>(op.dlogits);
  if (op.weight == 0) {
    __builtin_memset(dlogits, 0, static_cast<size_t>(op.padded) * sizeof(T));
    return;
  }
  gradient<T>(op, sums);
}

}  // namespace

extern const CrossEntropyKernels cross_entropy_kernels = {
    {row<double>, row<float>, row<bf16>},
    {shard_sums<double>, shard_sums<float>},
    {shard_gradient<double>, shard_gradient<float>, shard_gradient<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
