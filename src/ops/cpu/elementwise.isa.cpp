#include "ops/cpu/elementwise_kernels.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/philox_lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Returns x with 0 in the lanes whose draw drops the element.
[[gnu::always_inline]] inline Vec<float> kept(Vec<float> x, const uint32_t* draws, uint32_t threshold) {
  Vec<uint32_t> draw;
  std::memcpy(&draw, draws, sizeof(draw));
  return (Vec<float>)((Vec<int32_t>)x & (Vec<int32_t>)(draw >= threshold));
}
[[gnu::always_inline]] inline Vec<double> kept(Vec<double> x, const uint32_t* draws, uint32_t threshold) {
  Vec<int64_t> mask{};
  for (int i = 0; i < kLanes<double>; ++i) mask[i] = draws[i] >= threshold ? -1 : 0;
  return (Vec<double>)((Vec<int64_t>)x & mask);
}

template <typename T>
void dropout(const DropoutTile& t) {
  using A = AccumulatorOf<T>;
  constexpr int64_t kChunk = 256;
  const Vec<A> scale = splat<A>(static_cast<A>(t.scale));
  const T* bias = static_cast<const T*>(t.bias);
  uint32_t draws[kChunk + 2 * kPhiloxGroup + 16] = {};
  for (int64_t r = 0; r < t.rows; ++r) {
    const T* x = static_cast<const T*>(t.x) + r * t.x_ld;
    const T* residual = t.residual == nullptr ? nullptr : static_cast<const T*>(t.residual) + r * t.residual_ld;
    T* y = static_cast<T*>(t.y) + r * t.y_ld;
    const uint64_t first = t.first_index + static_cast<uint64_t>(t.order == nullptr ? r : t.order[r]) * t.width;
    for (int64_t c = 0; c < t.cols; c += kChunk) {
      const int64_t n = t.cols - c < kChunk ? t.cols - c : kChunk;
      const uint64_t index = first + static_cast<uint64_t>(c);
      const int64_t skip = static_cast<int64_t>(index % 4);
      if (t.threshold != 0)
        for (int64_t i = 0; i < skip + n; i += kPhiloxGroup)
          philox_group(t.key0, t.key1, t.step, (index + static_cast<uint64_t>(i)) / 4, draws + i);
      each_vector<A>(n, [&](int64_t i, auto tag) {
        Vec<A> v = get(x + c + i, tag);
        if (bias != nullptr) v += get(bias + c + i, tag);
        v = kept(v * scale, draws + skip + i, t.threshold);
        if (residual != nullptr) v += get(residual + c + i, tag);
        put(y + c + i, v, tag);
      });
    }
  }
}

template <typename T>
void scale(void* data, int64_t ld, int64_t rows, int64_t cols, double factor) {
  using A = AccumulatorOf<T>;
  const Vec<A> by = splat<A>(static_cast<A>(factor));
  for (int64_t r = 0; r < rows; ++r) {
    T* const x = static_cast<T*>(data) + r * ld;
    each_vector<A>(cols, [&](int64_t i, auto tag) { put(x + i, get(x + i, tag) * by, tag); });
  }
}

template <typename T>
void column_sum(const void* data, int64_t ld, int64_t rows, int64_t cols, void* out) {
  using A = AccumulatorOf<T>;
  const T* x = static_cast<const T*>(data);
  A* sums = static_cast<A*>(out);
  for (int64_t c = 0; c < cols; ++c) sums[c] = 0;
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {  // four rows per pass, so that the sums are loaded and stored only once per pass
    const T *x0 = x + r * ld, *x1 = x0 + ld, *x2 = x1 + ld, *x3 = x2 + ld;
    each_vector<A>(cols, [&](int64_t i, auto tag) {
      const Vec<A> four = (get(x0 + i, tag) + get(x1 + i, tag)) + (get(x2 + i, tag) + get(x3 + i, tag));
      put(sums + i, get(sums + i, tag) + four, tag);
    });
  }
  for (; r < rows; ++r)
    each_vector<A>(cols,
                   [&](int64_t i, auto tag) { put(sums + i, get(sums + i, tag) + get(x + r * ld + i, tag), tag); });
}

template <typename A>
void partial_sum(const void* data, int64_t blocks, int64_t ld, void* out, bool accumulate, int64_t first, int64_t n) {
  const A* partials = static_cast<const A*>(data) + first;
  A* sums = static_cast<A*>(out) + first;
  each_vector<A>(n, [&](int64_t i, auto tag) {
    Vec<A> total{};
    for (int64_t b = 0; b < blocks; ++b) total += get(partials + b * ld + i, tag);
    put(sums + i, accumulate ? get(sums + i, tag) + total : total, tag);
  });
}

template <typename From, typename To>
void cast(const void* from, void* to, int64_t n) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
  using A = AccumulatorOf<From>;
  if constexpr (sizeof(A) == sizeof(AccumulatorOf<To>)) {
    each_vector<A>(n, [&](int64_t i, auto tag) { put(y + i, get(x + i, tag), tag); });
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = To(static_cast<AccumulatorOf<To>>(static_cast<A>(x[i])));
  }
}

}  // namespace

extern const ElementwiseKernels elementwise_kernels = {{dropout<double>, dropout<float>, dropout<bf16>},
                                                       {scale<double>, scale<float>, scale<bf16>},
                                                       {column_sum<double>, column_sum<float>, column_sum<bf16>},
                                                       {partial_sum<double>, partial_sum<float>},
                                                       {{cast<double, double>, cast<double, float>, cast<double, bf16>},
                                                        {cast<float, double>, cast<float, float>, cast<float, bf16>},
                                                        {cast<bf16, double>, cast<bf16, float>, cast<bf16, bf16>}}};

}  // namespace trainer::ops::TRAINER_ISA
