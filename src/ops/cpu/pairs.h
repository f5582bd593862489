#pragma once
// Sums of products of bf16 pairs in vectors, for kernel files (*.isa.cpp; see simd.h for the unnamed namespace). A pair
// is two elements adjacent along k in one 32-bit lane, the first in its low half. CPUs with AVX512-BF16 use its
// instruction (device::Isa::avx512bf16). Other instruction sets compute the same bits in plain C++: slow, but the loops
// around pairs can be tested on any CPU. The AVX-512 objects use inline assembly, as tiles.h does, which saves
// compiling all kernel files a fourth time.
//
// Subnormals are flushed to zero in operands, products, sums and when rounding, regardless of MXCSR. A sum of two
// products is rounded twice, to nearest even: fma(a0, b0, fma(a1, b1, sum)), the second element of a pair first.
#include "ops/cpu/gemm_pack.h"
#include "ops/cpu/math_bf16.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

using Pairs = Vec<uint32_t>;
constexpr int64_t kPairLanes = kLanes<uint32_t>;

[[gnu::always_inline]] inline Pairs load_pairs(const bf16* p) {
  Pairs pairs;
  std::memcpy(&pairs, p, sizeof(pairs));
  return pairs;
}
[[gnu::always_inline]] inline void store_pairs(bf16* to, Pairs pairs) { std::memcpy(to, &pairs, sizeof(pairs)); }
/// One pair in every lane.
[[gnu::always_inline]] inline Pairs splat_pair(const bf16* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return splat(pair);
}

#if defined(__AVX512F__)

/// sums += a·b
[[gnu::always_inline]] inline void add_dots(Vec<float>& sums, Pairs a, Pairs b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
}
/// Prefetches a line for writing. (GCC's builtin prefetches for reading if prefetchw is not enabled for this file.)
[[gnu::always_inline]] inline void prefetch_to_write(const void* p) {
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(p)));
}

#else

inline float without_subnormal(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }
inline float pair_half(uint32_t pair, int second) {
  const uint32_t bits = second != 0 ? pair & 0xffff0000u : pair << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return without_subnormal(value);
}
/// a·b + c. A result that is subnormal when rounded to 24 bits with an unbounded exponent is flushed to zero. Since
/// subnormals have fewer bits, such a sum may round up to the smallest normal number. It is therefore computed again at
/// a larger exponent, with all 24 bits.
inline float fma_of_pairs(float a, float b, float c) {
  const float sum = __builtin_fmaf(a, b, c);
  if (__builtin_fabsf(sum) == 0x1p-126f &&
      __builtin_fabsf(__builtin_fmaf(a * 0x1p32f, b * 0x1p32f, c * 0x1p64f)) < 0x1p-62f)
    return __builtin_copysignf(0, sum);
  return without_subnormal(sum);
}
inline void add_dots(Vec<float>& sums, Pairs a, Pairs b) {
  for (int i = 0; i < kPairLanes; ++i)
    for (int half = 1; half >= 0; --half)
      sums[i] = fma_of_pairs(pair_half(a[i], half), pair_half(b[i], half), without_subnormal(sums[i]));
}
inline void prefetch_to_write(const void*) {}

#endif

// --- packing: elements along k in pairs ---

/// Prefetches `elements` of a row that will be packed soon.
[[gnu::always_inline]] inline void ask_for(const bf16* row, int64_t elements) {
  constexpr int64_t kLineElements = 32;
  for (int64_t i = 0; i < elements; i += kLineElements) __builtin_prefetch(row + i);
}

/// Returns pairs of two rows, 2p and 2p + 1 along k: lane i has element i of both. `below` is null at the end of an odd
/// k.
[[gnu::always_inline]] inline Pairs pair_rows(const bf16* above, const bf16* below, int64_t n) {
  const Vec<float> first = n >= kPairLanes ? load(above) : load_n(above, n);
  const Vec<float> second = below == nullptr ? Vec<float>{} : n >= kPairLanes ? load(below) : load_n(below, n);
  return (Pairs)first >> 16 | (Pairs)second;
}
/// Returns the pairs of a row that has n more elements along k: lane i has elements 2i and 2i + 1.
[[gnu::always_inline]] inline Pairs row_pairs(const bf16* row, int64_t n) {
  if (n >= 2 * kPairLanes) return load_pairs(row);
  Pairs pairs{};
  std::memcpy(&pairs, row, static_cast<size_t>(n) * sizeof(bf16));
  return pairs;
}
/// to[pair][row] <- from[row][pair] for a square of lanes; rows of `to` are `pitch` elements apart.
[[gnu::always_inline]] inline void store_transposed(Pairs (&square)[kPairLanes], bf16* to, int64_t pitch) {
  transpose<uint32_t>(square);
#pragma GCC unroll 16
  for (int64_t i = 0; i < kPairLanes; ++i) store_pairs(to + i * pitch, square[i]);
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
