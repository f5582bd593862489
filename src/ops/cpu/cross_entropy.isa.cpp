#include "ops/cpu/cross_entropy_kernels.h"

#include "base/philox.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/math.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename T>
double row(const CrossEntropyRow& op) {
  using A = AccumulatorOf<T>;
  constexpr int64_t kChunk = 2048;  // stays in L1 between the search for its largest element and its sum
  const A* logits = static_cast<const A*>(op.logits);
  T* dlogits = static_cast<T*>(op.dlogits);
  if (op.weight == 0) {
    if (dlogits != nullptr) __builtin_memset(dlogits, 0, static_cast<size_t>(op.padded) * sizeof(T));
    return 0;
  }

  // Online: the sum is relative to the largest logit so far and is scaled down when a larger one turns up.
  A largest = logits[0];
  double sum = 0;
  for (int64_t c = 0; c < op.vocab; c += kChunk) {
    const A* x = logits + c;
    const int64_t n = op.vocab - c < kChunk ? op.vocab - c : kChunk, whole = n - n % kLanes<A>;
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
  const double log_sum = sum < __builtin_inf() ? portable_log(sum) : sum;  // portable_log takes finite numbers only
  const double loss = op.weight * (log_sum + (static_cast<double>(largest) - static_cast<double>(logits[op.target])));
  if (dlogits == nullptr) return loss;

  const double factor = op.weight * op.scale;
  const Vec<A> shift = splat<A>(largest), scale = splat<A>(static_cast<A>(factor / sum));
  const Vec<A> target = vexp(splat<A>(logits[op.target]) - shift) * scale - static_cast<A>(factor);
  each_vector<A>(op.vocab,
                 [&](int64_t i, auto tag) { put(dlogits + i, vexp(get(logits + i, tag) - shift) * scale, tag); });
  put(dlogits + op.target, target, Part{1});
  __builtin_memset(dlogits + op.vocab, 0, static_cast<size_t>(op.padded - op.vocab) * sizeof(T));
  return loss;
}

}  // namespace

extern const CrossEntropyKernels cross_entropy_kernels = {{row<double>, row<float>, row<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
