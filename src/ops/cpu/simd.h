#pragma once
// Vectors of the instruction set a kernel file (*.isa.cpp) is compiled for. Everything here is in an unnamed namespace:
// the same source is compiled once per instruction set, and a shared inline function could be linked from the wrong
// one. For the same reason kernel files call no standard-library templates.
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/dtype.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <typename T, int Bytes>
struct VectorType {
  typedef T type __attribute__((vector_size(Bytes)));
};
template <int Bytes>
struct VectorType<bf16, Bytes> {  // no vectors of bf16 exist; a type for overload resolution on bf16* to discard
  struct type {};
};
/// Vec<float>, Vec<double>, Vec<int32_t>, …: operators + − * / < are elementwise.
template <typename T>
using Vec = typename VectorType<T, kVectorBytes>::type;
template <typename T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <typename T>
[[gnu::always_inline]] inline Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <typename T>
[[gnu::always_inline]] inline void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof(v));
}
template <typename T>
[[gnu::always_inline]] inline Vec<T> splat(T x) {
  return x - Vec<T>{};  // compiles to a bare broadcast, since x − 0 is x even for −0; 0 + x would be an addition
}
/// Load or store the first n lanes; all other lanes are 0 (load) or are not written (store).
template <typename T>
[[gnu::always_inline]] inline Vec<T> load_n(const T* p, int64_t n) {
  T lanes[kLanes<T>] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <typename T>
[[gnu::always_inline]] inline void store_n(T* p, Vec<T> v, int64_t n) {
  T lanes[kLanes<T>];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

/// a·b + c, rounded once if the instruction set has FMA (plain on x86: twice; canonical arithmetic uses fused()).
[[gnu::always_inline]] inline Vec<float> fmadd(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vec<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
[[gnu::always_inline]] inline Vec<double> fmadd(Vec<double> a, Vec<double> b, Vec<double> c) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (Vec<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
  return (Vec<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}

/// a > b ? a : b and a < b ? a : b; b if one is NaN.
template <typename V>
[[gnu::always_inline]] inline V vmax(V a, V b) {
  return a > b ? a : b;
}
template <typename V>
[[gnu::always_inline]] inline V vmin(V a, V b) {
  return a < b ? a : b;
}
#if defined(__AVX512F__)  // GCC compiles the above to a comparison and a blend
[[gnu::always_inline]] inline Vec<float> vmax(Vec<float> a, Vec<float> b) {
  return (Vec<float>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
}
[[gnu::always_inline]] inline Vec<float> vmin(Vec<float> a, Vec<float> b) {
  return (Vec<float>)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
}
[[gnu::always_inline]] inline Vec<double> vmax(Vec<double> a, Vec<double> b) {
  return (Vec<double>)_mm512_maskz_max_pd(0xff, (__m512d)a, (__m512d)b);
}
[[gnu::always_inline]] inline Vec<double> vmin(Vec<double> a, Vec<double> b) {
  return (Vec<double>)_mm512_maskz_min_pd(0xff, (__m512d)a, (__m512d)b);
}
#elif defined(__AVX2__)
[[gnu::always_inline]] inline Vec<float> vmax(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm256_max_ps(a, b); }
[[gnu::always_inline]] inline Vec<float> vmin(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm256_min_ps(a, b); }
[[gnu::always_inline]] inline Vec<double> vmax(Vec<double> a, Vec<double> b) {
  return (Vec<double>)_mm256_max_pd(a, b);
}
[[gnu::always_inline]] inline Vec<double> vmin(Vec<double> a, Vec<double> b) {
  return (Vec<double>)_mm256_min_pd(a, b);
}
#endif

/// Returns a vector whose lane i is lane Lane(i) of a and b, concatenated.
template <auto Lane, typename V>
[[gnu::always_inline]] inline V shuffled(V a, V b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, Lane(I)...);
  }
  (std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>());
}

/// Transposes a square of lanes, v[i][j] <-> v[j][i], by exchanging off-diagonal squares of 1, 2, 4, … lanes (Eklundh
/// 1972).
template <typename P, int Step = 1>
[[gnu::always_inline]] inline void transpose(Vec<P>* v) {
  constexpr int L = kLanes<P>;
  if constexpr (Step < L) {
    constexpr auto low = [](int i) { return (i & Step) != 0 ? L + i - Step : i; };
    constexpr auto high = [](int i) { return (i & Step) != 0 ? L + i : i + Step; };
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) {
      if ((i & Step) != 0) continue;
      const Vec<P> a = v[i], b = v[i + Step];
      v[i] = shuffled<low>(a, b);
      v[i + Step] = shuffled<high>(a, b);
    }
    transpose<P, 2 * Step>(v);
  }
}

/// Stores the sums of the lanes of N vectors, and overwrites the vectors. Adds in a fixed tree: repeatedly the upper
/// half of the lanes to the lower half. Then two vectors' remaining lanes fit in one. Width: the remaining lanes of
/// each.
template <int N, typename T, int Width = kLanes<T>, int Vectors = N>
[[gnu::always_inline]] inline void lane_sums(Vec<T>* v, T* sums) {
  if constexpr (Width == 1) {
    std::memcpy(sums, v, N * sizeof(T));
  } else {
    constexpr int kHalf = Width / 2;
    constexpr auto lower = [](int i) { return i / kHalf * Width + i % kHalf; };
    constexpr auto upper = [](int i) { return i / kHalf * Width + i % kHalf + kHalf; };
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; i += 2) {
      const Vec<T> a = v[i], b = v[i + 1 < Vectors ? i + 1 : i];
      v[i / 2] = shuffled<lower>(a, b) + shuffled<upper>(a, b);
    }
    lane_sums<N, T, kHalf, (Vectors + 1) / 2>(v, sums);
  }
}
template <typename T>
[[gnu::always_inline]] inline T lane_sum(Vec<T> v) {
  T sum;
  lane_sums<1, T>(&v, &sum);
  return sum;
}
template <typename T>
[[gnu::always_inline]] inline T lane_max(Vec<T> v) {
  T lanes[kLanes<T>];
  store(lanes, v);
  T best = lanes[0];
  for (int i = 1; i < kLanes<T>; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// bf16 in memory, f32 in registers. Stores round to nearest even with integer arithmetic; NaN becomes 0x7fff, as in
// bf16's constructor.
[[gnu::always_inline]] inline Vec<float> load(const bf16* p) {
#if defined(__AVX512F__)
  // maskz with all lanes: GCC 12 warns that the plain intrinsics read uninitialised registers.
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return (Vec<float>)((Vec<uint32_t>)wide << 16);
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return (Vec<float>)_mm256_slli_epi32(wide, 16);
#elif defined(__aarch64__)
  return (Vec<float>)((Vec<uint32_t>)vmovl_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))) << 16);
#else
  Vec<float> v;
  for (int i = 0; i < kLanes<float>; ++i) v[i] = static_cast<float>(p[i]);
  return v;
#endif
}
/// Stores the upper halves of 32-bit lanes.
[[gnu::always_inline]] inline void store_upper(bf16* p, Vec<uint32_t> v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)(v >> 16)));
#elif defined(__AVX2__)
  const __m256i upper = (__m256i)(v >> 16);
  const __m256i packed = _mm256_packus_epi32(upper, upper);  // the values of each 128-bit lane, twice
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#elif defined(__aarch64__)
  vst1_u16(reinterpret_cast<uint16_t*>(p), vmovn_u32((uint32x4_t)(v >> 16)));
#else
  for (int i = 0; i < kLanes<float>; ++i) {
    const uint16_t upper = static_cast<uint16_t>(v[i] >> 16);
    std::memcpy(p + i, &upper, sizeof(upper));
  }
#endif
}
[[gnu::always_inline]] inline void store(bf16* p, Vec<float> v) {
  const Vec<uint32_t> u = (Vec<uint32_t>)v, nan = (Vec<uint32_t>)(v != v);
  store_upper(p, (nan & 0x7fff0000u) | (~nan & (u + 0x7fffu + ((u >> 16) & 1u))));
}
/// Non-temporal store that bypasses the caches, if the instruction set has one. `p` must be aligned to the number of
/// bytes written. Call stream_fence() before a different thread reads them.
template <typename T>
[[gnu::always_inline]] inline void stream(T* p, Vec<T> v) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)v);
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)v);
#else
  store(p, v);
#endif
}
[[gnu::always_inline]] inline void stream(bf16* p, Vec<float> v) {
  alignas(kVectorBytes / 2) bf16 lanes[kLanes<float>];
  store(lanes, v);
#if defined(__AVX512F__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), *reinterpret_cast<const __m256i*>(lanes));
#elif defined(__AVX2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), *reinterpret_cast<const __m128i*>(lanes));
#else
  std::memcpy(p, lanes, sizeof(lanes));
#endif
}
inline void stream_fence() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}
[[gnu::always_inline]] inline Vec<float> load_n(const bf16* p, int64_t n) {
  float lanes[kLanes<float>] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = static_cast<float>(p[i]);
  return load(lanes);
}
[[gnu::always_inline]] inline void store_n(bf16* p, Vec<float> v, int64_t n) {
  bf16 lanes[kLanes<float>];
  store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
