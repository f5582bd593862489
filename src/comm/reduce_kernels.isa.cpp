#include "comm/reduce_kernels.h"

// Plain loops, which the compiler vectorizes for each instruction set. `ivdep`: `out` may be `a` or `b`, but must not
// overlap them in any other way.
namespace trainer::comm::TRAINER_ISA {
namespace {

// Each type defines how an element is loaded, added and stored. Integers are added as unsigned types, whose overflow is
// defined.
template <typename S, typename V, typename A>
struct Plain {
  using Stored = S;
  using Value = V;
  using Acc = A;
  static Value get(Stored x) { return static_cast<Value>(x); }
  static Stored put(Value x) { return static_cast<Stored>(x); }
};
using F64 = Plain<double, double, double>;
using F32 = Plain<float, float, double>;
using I32 = Plain<int32_t, uint32_t, int64_t>;
using I64 = Plain<int64_t, uint64_t, int64_t>;
struct BF16 {
  using Stored = uint16_t;
  using Value = float;
  using Acc = double;
  static Value get(Stored x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }
  static Stored put(Value x) { return static_cast<Stored>(rounded(x) >> 16); }
  /// Returns the rounded value in the upper half; the caller drops the lower half. NaN becomes 0x7fff, as in
  /// base/dtype.h.
  static uint32_t rounded(Value x) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x);
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff0000u : u + 0x7fffu + ((u >> 16) & 1u);
  }
};

/// Returns a if a > b or a is NaN, else b. Integers compare as signed.
template <typename A>
[[gnu::always_inline]] inline A larger(A a, A b) {
  return a > b || a != a ? a : b;
}

template <typename T>
void add(const void* va, const void* vb, void* vout, int64_t n) {
  const auto *a = static_cast<const typename T::Stored*>(va), *b = static_cast<const typename T::Stored*>(vb);
  auto* out = static_cast<typename T::Stored*>(vout);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = T::put(T::get(a[i]) + T::get(b[i]));
}
template <typename T>
void max(const void* va, const void* vb, void* vout, int64_t n) {
  const auto *a = static_cast<const typename T::Stored*>(va), *b = static_cast<const typename T::Stored*>(vb);
  auto* out = static_cast<typename T::Stored*>(vout);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = larger(a[i], b[i]);
}

/// Two bf16 values in one word, so that all work is in 32-bit lanes, without packing and unpacking.
struct [[gnu::packed, gnu::may_alias]] Pair {  // may be unaligned
  uint32_t word;
};
template <typename F>
[[gnu::always_inline]] inline void each_pair(const void* va, const void* vb, void* vout, int64_t n, F f) {
  const auto *a = static_cast<const Pair*>(va), *b = static_cast<const Pair*>(vb);
  auto* out = static_cast<Pair*>(vout);
#pragma GCC ivdep
  for (int64_t i = 0; i < n / 2; ++i) {
    const uint32_t x = a[i].word, y = b[i].word;
    const float low = f(__builtin_bit_cast(float, x << 16), __builtin_bit_cast(float, y << 16));
    const float high = f(__builtin_bit_cast(float, x & 0xffff0000u), __builtin_bit_cast(float, y & 0xffff0000u));
    out[i].word = BF16::rounded(low) >> 16 | (BF16::rounded(high) & 0xffff0000u);
  }
  if (n % 2 != 0) {
    const float last =
        f(BF16::get(static_cast<const uint16_t*>(va)[n - 1]), BF16::get(static_cast<const uint16_t*>(vb)[n - 1]));
    static_cast<uint16_t*>(vout)[n - 1] = BF16::put(last);
  }
}
void add_bf16(const void* a, const void* b, void* out, int64_t n) {
  each_pair(a, b, out, n, [](float x, float y) { return x + y; });
}
void max_bf16(const void* a, const void* b, void* out, int64_t n) {
  each_pair(a, b, out, n, [](float x, float y) { return larger(x, y); });
}

/// widen and narrow convert between the stored type and the accumulator type: f64 for floating point, i64 for integers.
template <typename T>
[[gnu::always_inline]] inline typename T::Acc widen(typename T::Stored x) {
  if constexpr (sizeof(x) == 2) {
    return T::get(x);
  } else {
    return x;
  }
}
template <typename T>
[[gnu::always_inline]] inline typename T::Stored narrow(typename T::Acc x) {
  if constexpr (sizeof(typename T::Stored) == 2) {
    return T::put(static_cast<float>(x));
  } else {
    return static_cast<typename T::Stored>(x);
  }
}

template <typename T>
void load(const void* vx, void* vacc, int64_t n) {
  const auto* x = static_cast<const typename T::Stored*>(vx);
  auto* acc = static_cast<typename T::Acc*>(vacc);
  for (int64_t i = 0; i < n; ++i) acc[i] = widen<T>(x[i]);
}
template <typename T>
void accumulate_sum(const void* vx, void* vacc, int64_t n) {
  const auto* x = static_cast<const typename T::Stored*>(vx);
  auto* acc = static_cast<typename T::Acc*>(vacc);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (__is_same(typename T::Acc, int64_t)) {
      acc[i] = static_cast<int64_t>(static_cast<uint64_t>(acc[i]) + static_cast<uint64_t>(widen<T>(x[i])));
    } else {
      acc[i] += widen<T>(x[i]);
    }
  }
}
template <typename T>
void accumulate_max(const void* vx, void* vacc, int64_t n) {
  const auto* x = static_cast<const typename T::Stored*>(vx);
  auto* acc = static_cast<typename T::Acc*>(vacc);
  for (int64_t i = 0; i < n; ++i) acc[i] = larger(acc[i], widen<T>(x[i]));
}
template <typename T>
void store(const void* vacc, void* vout, int64_t n) {
  const auto* acc = static_cast<const typename T::Acc*>(vacc);
  auto* out = static_cast<typename T::Stored*>(vout);
  for (int64_t i = 0; i < n; ++i) out[i] = narrow<T>(acc[i]);
}

}  // namespace

extern const ReduceKernels reduce_kernels = {
    {{add<F64>, add<F32>, add_bf16, add<I32>, add<I64>}, {max<F64>, max<F32>, max_bf16, max<I32>, max<I64>}},
    {load<F64>, load<F32>, load<BF16>, load<I32>, load<I64>},
    {{accumulate_sum<F64>, accumulate_sum<F32>, accumulate_sum<BF16>, accumulate_sum<I32>, accumulate_sum<I64>},
     {accumulate_max<F64>, accumulate_max<F32>, accumulate_max<BF16>, accumulate_max<I32>, accumulate_max<I64>}},
    {store<F64>, store<F32>, store<BF16>, store<I32>, store<I64>}};

}  // namespace trainer::comm::TRAINER_ISA
