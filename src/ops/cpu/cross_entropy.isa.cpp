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

/// factor·(softmax − onehot); target < 0: the target is on a different rank.
template <typename T>
void gradient(const AccumulatorOf<T>* logits, T* dlogits, const CrossEntropySums& sums, int64_t vocab, int64_t padded,
              int64_t target, double factor) {
  using A = AccumulatorOf<T>;
  const Vec<A> shift = splat<A>(static_cast<A>(sums.largest)), scale = splat<A>(static_cast<A>(factor / sums.sum));
  Vec<A> at_target = {};
  if (target >= 0) at_target = vexp(splat<A>(logits[target]) - shift) * scale - static_cast<A>(factor);
  each_vector<A>(vocab,
                 [&](int64_t i, auto tag) { put(dlogits + i, vexp(get(logits + i, tag) - shift) * scale, tag); });
  if (target >= 0) put(dlogits + target, at_target, Part{1});
  __builtin_memset(dlogits + vocab, 0, static_cast<size_t>(padded - vocab) * sizeof(T));
}

template <typename T>
double row(const CrossEntropyRow& op) {
  using A = AccumulatorOf<T>;
  const A* logits = static_cast<const A*>(op.logits);
  T* dlogits = static_cast<T*>(op.dlogits);
  if (op.weight == 0) {
    if (dlogits != nullptr) __builtin_memset(dlogits, 0, static_cast<size_t>(op.padded) * sizeof(T));
    return 0;
  }
  const CrossEntropySums sums = sums_of(logits, op.vocab);
  const double loss = op.weight * (log_of(sums.sum) + (sums.largest - static_cast<double>(logits[op.target])));
  if (dlogits != nullptr) gradient<T>(logits, dlogits, sums, op.vocab, op.padded, op.target, op.weight * op.scale);
  return loss;
}

template <typename T>
CrossEntropySums shard_sums(const void* logits, int64_t vocab) {
  return sums_of(static_cast<const AccumulatorOf<T>*>(logits), vocab);
}

template <typename T>
void shard_gradient(const CrossEntropyRow& op, const CrossEntropySums& sums) {
  T* dlogits = static_cast<T*>(op.dlogits);
  if (op.weight == 0) {
    __builtin_memset(dlogits, 0, static_cast<size_t>(op.padded) * sizeof(T));
    return;
  }
  gradient<T>(static_cast<const AccumulatorOf<T>*>(op.logits), dlogits, sums, op.vocab, op.padded, op.target,
              op.weight * op.scale);
}

}  // namespace

extern const CrossEntropyKernels cross_entropy_kernels = {
    {row<double>, row<float>, row<bf16>},
    {shard_sums<double>, shard_sums<float>, shard_sums<bf16>},
    {shard_gradient<double>, shard_gradient<float>, shard_gradient<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
