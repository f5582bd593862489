#include "ops/cpu/activation_kernels.h"

#include "ops/cpu/lanes.h"
#include "ops/cpu/math_bf16.h"

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

template <typename T>
void gelu(TileIn x, TileOut y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* in = row<T>(x, r);
    T* out = row<T>(y, r);
    each_vector<AccumulatorOf<T>>(cols, [&](int64_t i, auto tag) { put(out + i, vgelu(get(in + i, tag)), tag); });
  }
}

/// Equals the epilogue of a product of bf16 panels (gemm_finish.h), bit for bit.
void gelu_near(TileIn x, TileOut y, int64_t rows, int64_t cols) {
  constexpr int64_t kWide = 2 * kLanes<float>;
  for (int64_t r = 0; r < rows; ++r) {
    const bf16* const in = row<bf16>(x, r);
    bf16* const out = row<bf16>(y, r);
    const int64_t whole = cols / kWide * kWide;
    for (int64_t i = 0; i < whole; i += kWide) {
      const Halves halves = load_halves(in + i);
      store_halves(out + i, round_even_odd(vgelu_near(even_elements(halves)), vgelu_near(odd_elements(halves))));
    }
    each_vector<float>(cols - whole, [&](int64_t i, auto tag) {
      put(out + whole + i, without_subnormals(vgelu_near(get(in + whole + i, tag))), tag);
    });
  }
}

template <typename T>
void swiglu(TileIn gate, TileIn up, TileOut y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const T *g = row<T>(gate, r), *u = row<T>(up, r);
    T* out = row<T>(y, r);
    each_vector<AccumulatorOf<T>>(
        cols, [&](int64_t i, auto tag) { put(out + i, vsilu(get(g + i, tag)) * get(u + i, tag), tag); });
  }
}

template <typename T>
void swiglu_backward(TileIn dy, TileIn gate, TileIn up, TileOut dgate, TileOut dup, int64_t rows, int64_t cols) {
  using A = AccumulatorOf<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const T *d = row<T>(dy, r), *g = row<T>(gate, r), *u = row<T>(up, r);
    T *dg = row<T>(dgate, r), *du = row<T>(dup, r);
    each_vector<A>(cols, [&](int64_t i, auto tag) {
      const Vec<A> y = get(d + i, tag), x = get(g + i, tag), scale = get(u + i, tag);
      const Sigmoid<A> s = sigmoid_with_slope<A>(x);
      put(dg + i, y * scale * fmadd(x, s.slope, s.value), tag);
      put(du + i, y * (x * s.value), tag);
    });
  }
}

}  // namespace

extern const ActivationKernels activation_kernels = {
    {gelu<double>, gelu<float>, gelu<bf16>},
    {swiglu<double>, swiglu<float>, swiglu<bf16>},
    {swiglu_backward<double>, swiglu_backward<float>, swiglu_backward<bf16>}};
extern const ActivationKernels activation_kernels_near = {
    {gelu<double>, gelu<float>, gelu_near},
    {swiglu<double>, swiglu<float>, swiglu<bf16>},
    {swiglu_backward<double>, swiglu_backward<float>, swiglu_backward<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
