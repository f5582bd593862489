#pragma once
// Elementary functions and rounding for results stored as bf16, for kernel files (*.isa.cpp; see simd.h for the
// unnamed namespace). They take half the instructions of math.h and no division. Their relative error is below 2^−20,
// compared with bf16's 2^−9. Results are bitwise identical on every instruction set with FMA.
#include "ops/cpu/math.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

inline constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

/// 2^x for x < 128, relative error 2e-7; exactly 1 at 0. Below −100 (also at −inf), it is 2^−100, which is negligible
/// compared with 1, but large enough that products with it do not become subnormal, which would cost a hundred cycles
/// each. Polynomial in x − floor(x), p(0) = 1.
[[gnu::always_inline]] inline Vec<float> vexp2_near(Vec<float> x) {
  x = vmax(splat(-100.0f), x);  // keeps a NaN in the second operand
#if defined(__AVX512F__)
  const Vec<float> f = (Vec<float>)_mm512_maskz_reduce_ps(0xffff, (__m512)x, 0x09);  // x − floor(x), rounded down
#else
  Vec<float> floor = (x + 0x1.8p23f) - 0x1.8p23f;
  floor -= floor > x ? splat(1.0f) : Vec<float>{};
  Vec<float> f = x - floor;
  f = x - (f + floor) < 0.0f ? (Vec<float>)((Vec<uint32_t>)f - 1U) : f;    // like the instruction, rounds down
#endif
  Vec<float> p = fmadd(f, splat(0x1.e974fap-10f), splat(0x1.2778560p-7f));
  p = fmadd(f, p, splat(0x1.c91ce6p-5f));
  p = fmadd(f, p, splat(0x1.ebdb56p-3f));
  p = fmadd(f, p, splat(0x1.62e4bap-1f));
  p = fmadd(f, p, splat(1.0f));
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)x);  // p·2^floor(x)
#else
#if defined(__aarch64__)
  const Vec<int32_t> n = (Vec<int32_t>)vcvtq_s32_f32((float32x4_t)floor);  // 0 for NaN
#else
  Vec<int32_t> n{};
  for (int i = 0; i < kLanes<float>; ++i) n[i] = x[i] == x[i] ? static_cast<int32_t>(floor[i]) : 0;
#endif
  return p * (Vec<float>)((n + 127) << 23);
#endif
}

/// 1/x for 2^−80 <= x <= 2^80, relative error 5e-7: an estimate from the exponent bits, and one fifth-order iteration.
[[gnu::always_inline]] inline Vec<float> vinverse_near(Vec<float> x) {
  const Vec<float> guess = (Vec<float>)(0x7ef311c7U - (Vec<uint32_t>)x);
  const Vec<float> e = fmadd(-x, guess, splat(1.0f)), pair = fmadd(e, e, e);
  const Vec<float> series = fmadd(pair, e * e, pair);  // e + e² + e³ + e⁴
  return fmadd(guess, series, guess);
}

/// The tanh form of gelu (math.h): x·sigmoid(2u), u = √(2/π)·(x + 0.044715·x³), for x > −2^60: sigmoid is at least
/// 2^−80.
[[gnu::always_inline]] inline Vec<float> vgelu_near(Vec<float> x) {
  constexpr float kLinear = static_cast<float>(-kGeluLinear * kLog2E),
                  kCubic = static_cast<float>(-kGeluCubic * kLog2E);
  const Vec<float> y = x * fmadd(x * x, splat(kCubic), splat(kLinear));
  return x * vinverse_near(vexp2_near(vmin(splat(80.0f), y)) + 1.0f);
}
/// The derivative of gelu: s + x·s·(1 − s)·2u', with 1 − s = s·exp(−2u) to avoid cancellation.
[[gnu::always_inline]] inline Vec<float> vgelu_grad_near(Vec<float> x) {
  constexpr float kLinear = static_cast<float>(-kGeluLinear * kLog2E),
                  kCubic = static_cast<float>(-kGeluCubic * kLog2E), kSquare = static_cast<float>(3 * kGeluCubic),
                  kConstant = static_cast<float>(kGeluLinear);
  x = vmax(splat(-16.0f), vmin(splat(16.0f), x));  // s' is 0 beyond 16; the bound keeps x² and the exponent small
  const Vec<float> square = x * x, y = x * fmadd(square, splat(kCubic), splat(kLinear));
  const Vec<float> e = vexp2_near(vmin(splat(80.0f), y)), s = vinverse_near(e + 1.0f);
  return fmadd(s * (s * e), x * fmadd(square, splat(kSquare), splat(kConstant)), s);
}

struct NearNormalForm {
  static constexpr float kBound = 13.5f, kShift = 3.5f;
  static constexpr float kFit[] = {-0x1.729994p-10f, 0x1.ed431p-11f,  0x1.ae99aep-7f,  -0x1.5dcb4cp-5f,
                                   0x1.0216e4p-4f,   -0x1.f32a58p-6f, -0x1.34aa96p-4f, 0x1.24a968p-1f};
};
/// The exact form of gelu (math.h), and its derivative.
[[gnu::always_inline]] inline WithSlope<float> gelu_erf_with_slope_near(Vec<float> x) {
  return gelu_erf_of<NearNormalForm, float>(
      x, [](Vec<float> v) __attribute__((always_inline)) { return vexp2_near(v * static_cast<float>(-kLog2E / 2)); },
      [](Vec<float> v) __attribute__((always_inline)) { return vinverse_near(v); });
}
[[gnu::always_inline]] inline Vec<float> vgelu_erf_near(Vec<float> x) { return gelu_erf_with_slope_near(x).value; }
[[gnu::always_inline]] inline Vec<float> vgelu_erf_grad_near(Vec<float> x) { return gelu_erf_with_slope_near(x).slope; }

// --- bf16 in registers: two vectors of sums are rounded to one vector of 2·kLanes<float> elements ---

using Halves = Vec<uint16_t>;

/// Rounds to nearest even, a's elements before b's. Subnormals are flushed to 0 (as the instruction does, on every
/// set), NaN stays NaN.
[[gnu::always_inline]] inline Halves round_halves(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)  // requires AVX512-BF16, which callers ensure; it is not enabled in the compiler here
  Halves halves;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(b), "v"(a));
  return halves;
#else
  const auto rounded = [](Vec<float> x) __attribute__((always_inline)) {
    const Vec<uint32_t> u = (Vec<uint32_t>)x, sign = u & 0x80000000u;
    const Vec<uint32_t> even = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const Vec<uint32_t> nan = (Vec<uint32_t>)(x != x), small = (Vec<uint32_t>)((u & 0x7f800000u) == 0u);
    return (Halves)((nan & (u >> 16 | 0x40u)) | (~nan & small & sign >> 16) | (~nan & ~small & even));
  };
  constexpr auto low = [](int i) { return 2 * i; };
  return shuffled<low>(rounded(a), rounded(b));
#endif
}
/// Flushes subnormals to 0, as round_halves does; the stores in simd.h keep them.
[[gnu::always_inline]] inline Vec<float> without_subnormals(Vec<float> x) {
  const Vec<uint32_t> u = (Vec<uint32_t>)x;
  return (u & 0x7f800000u) == 0u ? (Vec<float>)(u & 0x80000000u) : x;
}
[[gnu::always_inline]] inline void store_halves(bf16* to, Halves halves) { std::memcpy(to, &halves, sizeof(halves)); }
/// Non-temporal store that bypasses the caches, like stream() in simd.h.
[[gnu::always_inline]] inline void stream_halves(bf16* to, Halves halves) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)halves);
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)halves);
#else
  store_halves(to, halves);
#endif
}
[[gnu::always_inline]] inline Halves load_halves(const bf16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return halves;
}
/// Return elements 0, 2, … or 1, 3, … as f32.
[[gnu::always_inline]] inline Vec<float> even_elements(Halves halves) {
  return (Vec<float>)((Vec<uint32_t>)halves << 16);
}
[[gnu::always_inline]] inline Vec<float> odd_elements(Halves halves) {
  return (Vec<float>)((Vec<uint32_t>)halves & 0xffff0000u);
}
/// Returns the pairs (a[i], b[i]) for the first half of the indices i, or for the second half.
template <bool Second>
[[gnu::always_inline]] inline Halves interleave(Halves a, Halves b) {
  constexpr int L = kLanes<uint16_t>;
  constexpr auto lane = [](int i) { return i / 2 + (Second ? L / 2 : 0) + (i % 2 != 0 ? L : 0); };
  return shuffled<lane>(a, b);
}
/// Rounds even and odd elements, and returns them in their original order.
[[gnu::always_inline]] inline Halves round_even_odd(Vec<float> even, Vec<float> odd) {
  const Halves halves = round_halves(even, odd);
  constexpr auto lane = [](int i) { return i / 2 + (i % 2 != 0 ? kLanes<uint16_t> / 2 : 0); };
  return shuffled<lane>(halves, halves);
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
