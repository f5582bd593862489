#pragma once
// The epilogue of a GEMM (GemmStore), applied to finished sums. Compiled per instruction set.
#include <type_traits>

#include "ops/cpu/gemm_kernel.h"
#include "ops/cpu/math_bf16.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Returns v as it reads back after a store to C, so that recomputing an activation from a stored `pre` is bitwise
/// identical.
template <typename C, typename P>
[[gnu::always_inline]] inline Vec<P> as_stored(Vec<P> v) {
  if constexpr (std::is_same_v<C, bf16>) {
    const Vec<uint32_t> u = (Vec<uint32_t>)v;
    return v == v ? (Vec<float>)((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u) : v;
  } else {
    return v;
  }
}

/// Returns v, with subnormals flushed to zero if C is bf16, as kernels for bf16 panels do before they round.
template <typename C, typename V>
[[gnu::always_inline]] inline V without_subnormals_of(V v) {
  if constexpr (std::is_same_v<C, bf16>) {
    return without_subnormals(v);
  } else {
    return v;
  }
}

/// Returns act(v) and act'(v); Near: for results in bf16 (math_bf16.h).
template <bool Near, typename V>
[[gnu::always_inline]] inline V activated(Activation act, V v) {
  const bool exact = act == Activation::gelu_erf;
  if constexpr (Near)
    return exact ? vgelu_erf_near(v) : vgelu_near(v);
  else
    return exact ? vgelu_erf(v) : vgelu(v);
}
template <bool Near, typename V>
[[gnu::always_inline]] inline V slope_of(Activation act, V v) {
  const bool exact = act == Activation::gelu_erf;
  if constexpr (Near)
    return exact ? vgelu_erf_grad_near(v) : vgelu_grad_near(v);
  else
    return exact ? vgelu_erf_grad(v) : vgelu_grad(v);
}

enum class Ending { store, accumulate, epilogue };

/// Near: activations of bf16 results are computed by math_bf16.h. All kernels of an instruction set with bf16 panels do
/// this, so that an element has the same bits whichever of them computes it.
template <Ending Kind, bool Whole, bool Near, typename T, typename C>
[[gnu::always_inline]] inline void finish_vector(Vec<AccumulatorOf<T>> v, int64_t row, int64_t col, int64_t n,
                                                 const GemmStore<T, C>& s) {
  constexpr bool kNear = Near && std::is_same_v<C, bf16>;
  const auto get = [=](const auto* p) __attribute__((always_inline)) {
    if constexpr (Whole)
      return load(p);
    else
      return load_n(p, n);
  };
  const auto put = [=](auto* p, Vec<AccumulatorOf<T>> value) __attribute__((always_inline)) {
    if constexpr (Whole)
      store(p, value);
    else
      store_n(p, value, n);
  };
  C* const c = s.c + row * s.ldc + col;
  if constexpr (Kind == Ending::accumulate) {
    v += get(static_cast<const C*>(c));
  } else if constexpr (Kind == Ending::epilogue) {
    if (s.gradient) {
      const auto pre = get(static_cast<const C*>(s.pre) + row * s.ld_pre + col);
      v *= slope_of<kNear>(s.act, pre);
    } else {
      if (s.bias != nullptr) v += get(s.bias + col);
      const auto sum = kNear ? without_subnormals_of<C>(v) : v;
      if (s.pre != nullptr) put(s.pre + row * s.ld_pre + col, sum);
      if (s.act != Activation::none) v = activated<kNear>(s.act, as_stored<C, AccumulatorOf<T>>(sum));
    }
    if (s.residual != nullptr) v += get(s.residual + row * s.ld_residual + col);
  }
  if constexpr (kNear) v = without_subnormals_of<C>(v);
  if constexpr (Whole && Kind != Ending::accumulate) {
    if (s.stream) return stream(c, v);
  }
  put(c, v);
}

template <Ending Kind, bool Near, typename T, typename C>
[[gnu::always_inline]] inline void finish_as(const AccumulatorOf<T>* sums, int64_t ld, int64_t row, int64_t col,
                                             int64_t rows, int64_t cols, GemmStore<T, C> s) {
  constexpr int L = kLanes<AccumulatorOf<T>>;
  const int64_t whole = cols / L * L;
  for (int64_t i = 0; i < rows; ++i) {
    const AccumulatorOf<T>* const sum = sums + i * ld;
    for (int64_t j = 0; j < whole; j += L) finish_vector<Kind, true, Near>(load(sum + j), row + i, col + j, L, s);
    if (whole < cols)
      finish_vector<Kind, false, Near>(load_n(sum + whole, cols - whole), row + i, col + whole, cols - whole, s);
  }
}

template <bool Near, typename T, typename C>
void finish(const AccumulatorOf<T>* sums, int64_t ld, int64_t row, int64_t col, int64_t rows, int64_t cols,
            const GemmStore<T, C>& s) {
  if (s.accumulate) {
    finish_as<Ending::accumulate, Near>(sums, ld, row, col, rows, cols, s);
  } else if (s.bias == nullptr && s.pre == nullptr && s.residual == nullptr && s.act == Activation::none) {
    finish_as<Ending::store, Near>(sums, ld, row, col, rows, cols, s);
  } else {
    finish_as<Ending::epilogue, Near>(sums, ld, row, col, rows, cols, s);
  }
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
