#include "ops/cpu/finish_kernels.h"

#include "ops/cpu/gemm_finish.h"
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename T>
const T* row(TileIn t, int64_t r) {
  return static_cast<const T*>(t.data) + r * t.ld;
}
template <typename T>
T* row(TileOut t, int64_t r) {
  return static_cast<T*>(t.data) + r * t.ld;
}

/// Near: bf16 by math_bf16.h, as in the epilogue of products of bf16 panels.
template <typename T, bool Near = false>
void bias_activation(TileIn x, const void* bias, TileOut pre, TileOut y, bool gelu, int64_t rows, int64_t cols) {
  using A = AccumulatorOf<T>;
  const T* b = static_cast<const T*>(bias);
  for (int64_t r = 0; r < rows; ++r) {
    const T* in = row<T>(x, r);
    T *kept = pre.data == nullptr ? nullptr : row<T>(pre, r), *out = row<T>(y, r);
    each_vector<A>(cols, [&](int64_t i, auto tag) {
      Vec<A> v = get(in + i, tag);
      if (b != nullptr) v += get(b + i, tag);
      if constexpr (Near) {
        const Vec<A> sum = without_subnormals(v);
        if (kept != nullptr) put(kept + i, sum, tag);
        put(out + i, without_subnormals(gelu ? vgelu_near(as_stored<T, A>(sum)) : v), tag);
      } else {
        if (kept != nullptr) put(kept + i, v, tag);
        put(out + i, gelu ? vgelu(as_stored<T, A>(v)) : v, tag);
      }
    });
  }
}

template <typename T, bool Near = false>
void gelu_backward(TileIn dy, TileIn x, TileOut dx, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const T *d = row<T>(dy, r), *in = row<T>(x, r);
    T* out = row<T>(dx, r);
    each_vector<AccumulatorOf<T>>(cols, [&](int64_t i, auto tag) {
      if constexpr (Near) {
        put(out + i, without_subnormals(get(d + i, tag) * vgelu_grad_near(get(in + i, tag))), tag);
      } else {
        put(out + i, get(d + i, tag) * vgelu_grad(get(in + i, tag)), tag);
      }
    });
  }
}

template <typename T, bool Near = false>
void add(TileIn x, TileIn other, const void* bias, TileOut y, int64_t rows, int64_t cols) {
  using A = AccumulatorOf<T>;
  const T* b = static_cast<const T*>(bias);
  for (int64_t r = 0; r < rows; ++r) {
    const T *in = row<T>(x, r), *more = row<T>(other, r);
    T* out = row<T>(y, r);
    each_vector<A>(cols, [&](int64_t i, auto tag) {
      Vec<A> v = get(in + i, tag);
      if (b != nullptr) v += get(b + i, tag);
      v += get(more + i, tag);
      if constexpr (Near) v = without_subnormals(v);
      put(out + i, v, tag);
    });
  }
}

}  // namespace

extern const FinishKernels finish_kernels = {{bias_activation<double>, bias_activation<float>, bias_activation<bf16>},
                                             {gelu_backward<double>, gelu_backward<float>, gelu_backward<bf16>},
                                             {add<double>, add<float>, add<bf16>}};
extern const FinishKernels finish_kernels_near = {
    {bias_activation<double>, bias_activation<float>, bias_activation<bf16, true>},
    {gelu_backward<double>, gelu_backward<float>, gelu_backward<bf16, true>},
    {add<double>, add<float>, add<bf16, true>}};

}  // namespace trainer::ops::TRAINER_ISA
