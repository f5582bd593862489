#include "ops/cpu/activation_kernels.h"

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

/// Near: bf16 with math_bf16.h, bitwise identical to the epilogue of GEMMs with bf16 panels (panel_finish.h).
template <typename T, bool Near = false>
void bias_activation(TileIn x, const void* bias, TileOut pre, TileOut y, Activation act, int64_t rows, int64_t cols) {
  using A = AccumulatorOf<T>;
  const T* b = static_cast<const T*>(bias);
  for (int64_t r = 0; r < rows; ++r) {
    const T* in = row<T>(x, r);
    T *kept = pre.data == nullptr ? nullptr : row<T>(pre, r), *out = row<T>(y, r);
    int64_t done = 0;
    if constexpr (Near) {
      constexpr int64_t L = kLanes<float>;
      for (; done + 2 * L <= cols; done += 2 * L) {
        Halves sum = load_halves(in + done);
        if (b != nullptr || kept != nullptr || act == Activation::none) {  // a subnormal's gelu is rounded to 0 anyway
          Vec<float> low = load(in + done), high = load(in + done + L);
          if (b != nullptr) low += load(b + done), high += load(b + done + L);
          sum = round_halves(low, high);
        }
        if (kept != nullptr) store_halves(kept + done, sum);
        store_halves(out + done, act == Activation::none ? sum
                                                         : round_even_odd(activated<true>(act, even_elements(sum)),
                                                                          activated<true>(act, odd_elements(sum))));
      }
    }
    each_vector<A>(cols - done, [&](int64_t rest, auto tag) {
      const int64_t i = done + rest;
      Vec<A> v = get(in + i, tag);
      if (b != nullptr) v += get(b + i, tag);
      if constexpr (Near) {
        const Vec<A> sum = without_subnormals(v);
        if (kept != nullptr) put(kept + i, sum, tag);
        put(out + i, without_subnormals(act == Activation::none ? v : activated<true>(act, as_stored<T, A>(sum))), tag);
      } else {
        if (kept != nullptr) put(kept + i, v, tag);
        put(out + i, act == Activation::none ? v : activated<false>(act, as_stored<T, A>(v)), tag);
      }
    });
  }
}

template <typename T, bool Near = false>
void backward(TileIn dy, TileIn x, TileOut dx, Activation act, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const T *d = row<T>(dy, r), *in = row<T>(x, r);
    T* out = row<T>(dx, r);
    each_vector<AccumulatorOf<T>>(cols, [&](int64_t i, auto tag) {
      if constexpr (Near) {
        put(out + i, without_subnormals(get(d + i, tag) * slope_of<true>(act, get(in + i, tag))), tag);
      } else {
        put(out + i, get(d + i, tag) * slope_of<false>(act, get(in + i, tag)), tag);
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

struct SiluGate {
  template <typename V>
  [[gnu::always_inline]] static V value(V x) {
    return vsilu(x);
  }
  template <typename A>
  [[gnu::always_inline]] static WithSlope<A> with_slope(Vec<A> x) {
    const WithSlope<A> s = sigmoid_with_slope<A>(x);
    return {x * s.value, fmadd(x, s.slope, s.value)};
  }
};
struct GeluGate {
  template <typename V>
  [[gnu::always_inline]] static V value(V x) {
    return vgelu(x);
  }
  template <typename A>
  [[gnu::always_inline]] static WithSlope<A> with_slope(Vec<A> x) {
    return gelu_with_slope<A>(x);
  }
};
struct GeluErfGate {
  template <typename V>
  [[gnu::always_inline]] static V value(V x) {
    return vgelu_erf(x);
  }
  template <typename A>
  [[gnu::always_inline]] static WithSlope<A> with_slope(Vec<A> x) {
    return gelu_erf_with_slope<A>(x);
  }
};

template <typename F, typename T>
void gated_by(TileIn gate, TileIn up, const void* weights, TileOut y, int64_t rows, int64_t cols) {
  using A = AccumulatorOf<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const T *g = row<T>(gate, r), *u = row<T>(up, r);
    T* out = row<T>(y, r);
    const auto value = [&](int64_t i, auto tag) __attribute__((always_inline)) {
      return F::value(get(g + i, tag)) * get(u + i, tag);
    };
    if (weights == nullptr) {
      each_vector<A>(cols, [&](int64_t i, auto tag) { put(out + i, value(i, tag), tag); });
    } else {
      const Vec<A> weight = splat<A>(static_cast<const A*>(weights)[r]);
      each_vector<A>(cols, [&](int64_t i, auto tag) { put(out + i, value(i, tag) * weight, tag); });
    }
  }
}

template <typename F, typename T>
void gated_backward_by(TileIn dy, TileIn gate, TileIn up, const void* weights, TileOut dgate, TileOut dup,
                       void* dweights, int64_t rows, int64_t cols) {
  using A = AccumulatorOf<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const T *d = row<T>(dy, r), *g = row<T>(gate, r), *u = row<T>(up, r);
    T *dg = row<T>(dgate, r), *du = row<T>(dup, r);
    const auto gradients = [&](int64_t i, auto tag, Vec<A> y, Vec<A> x, Vec<A> scale) __attribute__((always_inline)) {
      const WithSlope<A> f = F::template with_slope<A>(x);
      put(dg + i, y * scale * f.slope, tag);
      put(du + i, y * f.value, tag);
      return f.value * scale;
    };
    if (weights == nullptr) {
      each_vector<A>(
          cols, [&](int64_t i, auto tag) { gradients(i, tag, get(d + i, tag), get(g + i, tag), get(u + i, tag)); });
    } else {
      const Vec<A> weight = splat<A>(static_cast<const A*>(weights)[r]);
      static_cast<A*>(dweights)[r] = sum_of<A>(cols, [&](int64_t i, auto tag) {
        const Vec<A> t = get(d + i, tag);
        return t * gradients(i, tag, t * weight, get(g + i, tag), get(u + i, tag));
      });
    }
  }
}

/// Calls fn with the activation of a gated MLP.
template <typename F>
void with_gate(Activation act, F fn) {
  if (act == Activation::silu) return fn(SiluGate());
  act == Activation::gelu_erf ? fn(GeluErfGate()) : fn(GeluGate());
}
template <typename T>
void gated(TileIn gate, TileIn up, const void* weights, TileOut y, Activation act, int64_t rows, int64_t cols) {
  with_gate(act, [&]<typename F>(F) { gated_by<F, T>(gate, up, weights, y, rows, cols); });
}
template <typename T>
void gated_backward(TileIn dy, TileIn gate, TileIn up, const void* weights, TileOut dgate, TileOut dup, void* dweights,
                    Activation act, int64_t rows, int64_t cols) {
  with_gate(act,
            [&]<typename F>(F) { gated_backward_by<F, T>(dy, gate, up, weights, dgate, dup, dweights, rows, cols); });
}

template <typename A>
void sigmoid(TileIn x, TileOut y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const A* in = row<A>(x, r);
    A* out = row<A>(y, r);
    each_vector<A>(cols,
                   [&](int64_t i, auto tag) { put(out + i, sigmoid_with_slope<A>(get(in + i, tag)).value, tag); });
  }
}

template <typename T>
void sigmoid_backward(TileIn dy, TileIn y, TileOut dx, int64_t rows, int64_t cols) {
  using A = AccumulatorOf<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const A *d = row<A>(dy, r), *value = row<A>(y, r);
    T* out = row<T>(dx, r);
    each_vector<A>(cols, [&](int64_t i, auto tag) {
      const Vec<A> s = get(value + i, tag);
      put(out + i, get(d + i, tag) * s * (A(1) - s), tag);
    });
  }
}

/// tanh(u) = (1 − e)/(1 + e) with e = exp(−2·|u|), and the sign of u.
template <typename T>
void soft_cap(TileOut x, double cap, int64_t rows, int64_t cols) {
  const T bound = static_cast<T>(cap), slope = static_cast<T>(-2 / cap);
  for (int64_t r = 0; r < rows; ++r) {
    T* const values = row<T>(x, r);
    each_vector<T>(cols, [&](int64_t i, auto tag) {
      const Vec<T> v = get(values + i, tag), e = vexp(abs_impl<T>(v) * slope), size = bound * ((T(1) - e) / (T(1) + e));
      put(values + i, v < Vec<T>{} ? -size : size, tag);
    });
  }
}

template <bool Near>
constexpr ActivationKernels kernels() {
  return {{bias_activation<double>, bias_activation<float>, bias_activation<bf16, Near>},
          {backward<double>, backward<float>, backward<bf16, Near>},
          {add<double>, add<float>, add<bf16, Near>},
          {gated<double>, gated<float>, gated<bf16>},
          {gated_backward<double>, gated_backward<float>, gated_backward<bf16>},
          {sigmoid<double>, sigmoid<float>},
          {sigmoid_backward<double>, sigmoid_backward<float>, sigmoid_backward<bf16>},
          {soft_cap<double>, soft_cap<float>}};
}

}  // namespace

extern const ActivationKernels activation_kernels = kernels<false>(), activation_kernels_near = kernels<true>();

}  // namespace trainer::ops::TRAINER_ISA
