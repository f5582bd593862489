#pragma once
// Elementary functions on vectors, for kernel files (*.isa.cpp; see simd.h for the unnamed namespace). exp subtracts a
// multiple of ln 2, represented in two parts (Cody & Waite 1980), and evaluates a polynomial on |r| <= ln2/2. Errors in
// f32 and f64 are 1.5 ulp for exp and 3 ulp for sigmoid, and about one ulp more without FMA. NaN stays NaN; exp(−inf) =
// 0, exp(+inf) = inf, results below 2^−125 (f64: 2^−1021) are 0.
#include <limits>

#include "ops/cpu/simd.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// (exp(r) − 1 − r)/r² on |r| <= 0.3475, highest power first: Chebyshev fits, relative error of exp 8e-9 and 2e-19.
template <typename T>
struct ExpTerms;
template <>
struct ExpTerms<float> {
  using Bits = int32_t;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr float kLower = -87.6f, kUpper = 89.0f;  // rounded to n = −126 and 128: results 0 and inf
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // n·kLn2High is exact
  static constexpr float kRounder = 0x1.8p23f;  // x + kRounder keeps x's integer part in its low bits
  static constexpr float kFit[] = {0x1.6d1254p-10f, 0x1.120cbap-7f, 0x1.555518p-5f, 0x1.5554dcp-3f, 0.5f};
};
template <>
struct ExpTerms<double> {
  using Bits = int64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kLower = -708.7, kUpper = 710.0;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kRounder = 0x1.8p52;
  static constexpr double kFit[] = {0x1.1f73b376c0f55p-29,
                                    0x1.af4f1ddf981a8p-26,
                                    0x1.27e4db0f8a3efp-22,
                                    0x1.71de019d031e7p-19,
                                    0x1.a01a01a6f35fbp-16,
                                    0x1.a01a01ac16f76p-13,
                                    0x1.6c16c16c162a3p-10,
                                    0x1.1111111110085p-7,
                                    0x1.5555555555556p-5,
                                    0x1.5555555555557p-3,
                                    0.5};
};

/// exp(x) = 2^n·(1 + fraction)
template <typename T>
[[gnu::always_inline]] inline Vec<T> exp_impl(Vec<T> x) {
  using C = ExpTerms<T>;
  using Bits = typename C::Bits;
  x = vmax(splat<T>(C::kLower), vmin(splat<T>(C::kUpper), x));  // keeps a NaN in the second operand
  // The sum's low bits are n − 1 + bias; shifted into place, they become the exponent field of a power of two.
  const Vec<T> rounder = splat<T>(C::kRounder + static_cast<T>(C::kBias - 1));
  const Vec<T> biased = fmadd(x, splat<T>(static_cast<T>(0x1.71547652b82fep+0)), rounder);
  const Vec<T> n = biased - rounder;
  const Vec<T> r = fmadd(n, splat<T>(-C::kLn2Low), fmadd(n, splat<T>(-C::kLn2High), x));
  Vec<T> fit = splat<T>(C::kFit[0]);
  constexpr int kTerms = sizeof(C::kFit) / sizeof(T);
#pragma GCC unroll 16
  for (int i = 1; i < kTerms; ++i) fit = fmadd(fit, r, splat<T>(C::kFit[i]));
  const Vec<T> fraction = fmadd(fit, r * r, r), power = (Vec<T>)((Vec<Bits>)biased << C::kMantissa);
  return fmadd(power, fraction, power) * T(2);  // power: 2^(n − 1), as 2^128 would overflow; n = −126 yields 0
}
template <typename T>
[[gnu::always_inline]] inline Vec<T> abs_impl(Vec<T> x) {
  using Bits = Vec<typename ExpTerms<T>::Bits>;
  return (Vec<T>)((Bits)x & ~(Bits)splat<T>(T(-0.0)));
}

// gelu(x) = x/2·(1 + tanh u) = x·sigmoid(2u), u = √(2/π)·(x + 0.044715·x³).
inline constexpr double kGeluLinear = 2 * 0.79788456080286535588;  // 2·√(2/π)
inline constexpr double kGeluCubic = kGeluLinear * 0.044715;

template <typename T>
[[gnu::always_inline]] inline Vec<T> gelu_impl(Vec<T> x) {
  const Vec<T> slope = fmadd(x * x, splat<T>(static_cast<T>(-kGeluCubic)), splat<T>(static_cast<T>(-kGeluLinear)));
  return x / (T(1) + exp_impl<T>(x * slope));
}

/// A function's value and its derivative.
template <typename T>
struct WithSlope {
  Vec<T> value, slope;
};
/// sigmoid(y) and sigmoid'(y) = s·(1 − s), computed from exp(−|y|) for full relative accuracy.
template <typename T>
[[gnu::always_inline]] inline WithSlope<T> sigmoid_with_slope(Vec<T> y) {
  const Vec<T> e = exp_impl<T>(-abs_impl<T>(y)), inverse = T(1) / (T(1) + e), small = e * inverse;
  return {y < Vec<T>{} ? small : inverse, small * inverse};
}
template <typename T>
[[gnu::always_inline]] inline WithSlope<T> gelu_with_slope(Vec<T> x) {
  // d/dx x·s(2u) = s + x·s'·2u'. Beyond 16 (f64: 64) s' is 0; the bound keeps x² finite.
  const T bound = sizeof(T) == 4 ? T(16) : T(64);
  const Vec<T> near = vmax(splat<T>(-bound), vmin(splat<T>(bound), x));
  const Vec<T> square = near * near, linear = splat<T>(static_cast<T>(kGeluLinear));
  const WithSlope<T> s = sigmoid_with_slope<T>(near * fmadd(square, splat<T>(static_cast<T>(kGeluCubic)), linear));
  // −∞ times a sigmoid of 0 would be NaN; products of finite x keep their bits.
  const Vec<T> low = vmax(splat<T>(std::numeric_limits<T>::lowest()), x);
  return {low * s.value,
          fmadd(near * s.slope, fmadd(square, splat<T>(static_cast<T>(3 * kGeluCubic)), linear), s.value)};
}

/// The Gaussian distribution Φ and e^(−x²/2), from which gelu_erf and its derivative follow. A C library's erf does not
/// vectorize, and its bits depend on the library. After a rational change of variable (Shepherd & Laframboise 1981,
/// Math. Comp. 36), a polynomial, with the highest power first, gives the tail relative to e^(−x²/2): negative tails
/// keep their relative accuracy. Beyond the bound, Φ is 0 or 1. The coefficients were fitted for this program.
template <typename T>
struct NormalForm;
template <>
struct NormalForm<float> {
  static constexpr float kBound = 13.5f, kShift = 3.5f;
  static constexpr float kFit[] = {0x1.82c444p-13f, 0x1.497b8ep-14f, -0x1.df0ddp-10f, 0x1.78afp-11f,   0x1.b59cd2p-7f,
                                   -0x1.5cf2e2p-5f, 0x1.01ed34p-4f,  -0x1.f3607ap-6f, -0x1.34a84ep-4f, 0x1.24a97p-1f};
};
template <>
struct NormalForm<double> {
  static constexpr double kBound = 39, kShift = 4;
  static constexpr double kFit[] = {
      0x1.2f8c0e90b1e3dp-32,  0x1.84840738df439p-28,  0x1.e600961211617p-27, -0x1.bd0a303fad78bp-26,
      -0x1.1433b3f657271p-23, 0x1.105909494dfc3p-26,  0x1.790f1cb75f26cp-21, 0x1.e51a277be00a8p-22,
      -0x1.cbb9ac343bc22p-19, -0x1.11e205567562ap-18, 0x1.2fc9cf86c2d42p-16, 0x1.aa354ec430296p-16,
      -0x1.eaa433fd743f9p-14, -0x1.bf516c515175ap-14, 0x1.dff13d4890822p-11, -0x1.0eeaa493baf13p-11,
      -0x1.a21c5a29671b1p-8,  0x1.921d6a0dc9508p-6,   -0x1.88eabed0237e5p-5, 0x1.b7b978b5b6989p-5,
      -0x1.bd7d64efe0170p-7,  -0x1.40a27105157eap-4,  0x1.22078ca96fa5ap-1};
};
/// Returns x·Φ(x) and its derivative Φ(x) + x·e^(−x²/2)/√(2π). Exp: e^(−v/2); Inverse: 1/v.
template <typename Form, typename T, typename Exp, typename Inverse>
[[gnu::always_inline]] inline WithSlope<T> gelu_erf_of(Vec<T> x, Exp exp_of_half, Inverse inverse) {
  const Vec<T> low = vmax(splat<T>(-Form::kBound), x), near = vmin(splat<T>(Form::kBound), low);  // keep a NaN
  const Vec<T> y = abs_impl<T>(near), a = fmadd(y, splat<T>(T(1.25)), splat<T>(T(1))), b = y + splat<T>(Form::kShift);
  const Vec<T> e = exp_of_half(y * y), r = inverse(a * b), u = (y - splat<T>(Form::kShift)) * a * r;
  Vec<T> fit = splat<T>(Form::kFit[0]);
  constexpr int kTerms = sizeof(Form::kFit) / sizeof(T);
#pragma GCC unroll 32
  for (int i = 1; i < kTerms; ++i) fit = fmadd(fit, u, splat<T>(Form::kFit[i]));
  const Vec<T> tail = e * fit * (b * r), distribution = near < Vec<T>{} ? tail : T(1) - tail;
  constexpr T kDensity = static_cast<T>(0.39894228040143267794);  // 1/√(2π)
  return {low * distribution, fmadd(near * kDensity, e, distribution)};
}
template <typename T>
[[gnu::always_inline]] inline WithSlope<T> gelu_erf_with_slope(Vec<T> x) {
  return gelu_erf_of<NormalForm<T>, T>(
      x, [](Vec<T> v) __attribute__((always_inline)) { return exp_impl<T>(v * T(-0.5)); },
      [](Vec<T> v) __attribute__((always_inline)) { return T(1) / v; });
}

// Function templates cannot deduce T from Vec<T>, so the functions that kernels call are overloads.
[[gnu::always_inline]] inline Vec<float> vexp(Vec<float> x) { return exp_impl<float>(x); }
[[gnu::always_inline]] inline Vec<double> vexp(Vec<double> x) { return exp_impl<double>(x); }
[[gnu::always_inline]] inline Vec<float> vsilu(Vec<float> x) { return x / (1.0f + vexp(-x)); }
[[gnu::always_inline]] inline Vec<double> vsilu(Vec<double> x) { return x / (1.0 + vexp(-x)); }
/// The tanh form of gelu, and its derivative.
[[gnu::always_inline]] inline Vec<float> vgelu(Vec<float> x) { return gelu_impl<float>(x); }
[[gnu::always_inline]] inline Vec<double> vgelu(Vec<double> x) { return gelu_impl<double>(x); }
[[gnu::always_inline]] inline Vec<float> vgelu_grad(Vec<float> x) { return gelu_with_slope<float>(x).slope; }
[[gnu::always_inline]] inline Vec<double> vgelu_grad(Vec<double> x) { return gelu_with_slope<double>(x).slope; }
/// The exact form of gelu, and its derivative.
[[gnu::always_inline]] inline Vec<float> vgelu_erf(Vec<float> x) { return gelu_erf_with_slope<float>(x).value; }
[[gnu::always_inline]] inline Vec<double> vgelu_erf(Vec<double> x) { return gelu_erf_with_slope<double>(x).value; }
[[gnu::always_inline]] inline Vec<float> vgelu_erf_grad(Vec<float> x) { return gelu_erf_with_slope<float>(x).slope; }
[[gnu::always_inline]] inline Vec<double> vgelu_erf_grad(Vec<double> x) { return gelu_erf_with_slope<double>(x).slope; }

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
