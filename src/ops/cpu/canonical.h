#pragma once
// Operations with the same rounding on every instruction set and device, for kernel files (*.isa.cpp): the building
// blocks of canonical arithmetic, besides + − × ÷.
#include "ops/cpu/simd.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Fused multiply-add, rounded once on every instruction set; plain code on x86 calls the C library.
template <typename A>
[[gnu::always_inline]] inline Vec<A> fused(Vec<A> a, Vec<A> b, Vec<A> c) {
#if defined(__FMA__) || defined(__aarch64__)
  return fmadd(a, b, c);
#else
  for (int i = 0; i < kLanes<A>; ++i) {
    if constexpr (sizeof(A) == 4) {
      c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    } else {
      c[i] = __builtin_fma(a[i], b[i], c[i]);
    }
  }
  return c;
#endif
}
/// Correctly rounded square roots.
[[gnu::always_inline]] inline Vec<float> square_root(Vec<float> x) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_sqrt_ps((__m256)x);
#elif defined(__aarch64__)
  return (Vec<float>)vsqrtq_f32((float32x4_t)x);
#else
  for (int i = 0; i < kLanes<float>; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}
[[gnu::always_inline]] inline Vec<double> square_root(Vec<double> x) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
#elif defined(__AVX2__)
  return (Vec<double>)_mm256_sqrt_pd((__m256d)x);
#elif defined(__aarch64__)
  return (Vec<double>)vsqrtq_f64((float64x2_t)x);
#else
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
