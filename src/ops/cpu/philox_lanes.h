#pragma once
// Philox4x32-10 on vectors, for kernel files (*.isa.cpp): the draws of base/philox.h, several blocks at a time.
#include "ops/cpu/simd.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// The number of draws per call of philox_group.
inline constexpr int kPhiloxGroup = 4 * kLanes<uint64_t>;

/// Multiplies the low halves of 64-bit lanes by b.
[[gnu::always_inline]] inline Vec<uint64_t> multiply_low(Vec<uint64_t> a, uint64_t b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (Vec<uint64_t>)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(static_cast<int64_t>(b)));
#elif defined(__aarch64__)
  return (Vec<uint64_t>)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(static_cast<uint32_t>(b)));
#else
  return (a & 0xffffffffu) * b;
#endif
}

/// draws[i] = draw of element 4·first_block + i, i < kPhiloxGroup. Each 64-bit lane holds one 32-bit word of a block's
/// counter; the upper half of a lane may contain garbage until the end.
[[gnu::always_inline]] inline void philox_group(uint32_t key0, uint32_t key1, uint32_t step, uint64_t first_block,
                                                uint32_t* draws) {
  Vec<uint64_t> block;
  for (int i = 0; i < kLanes<uint64_t>; ++i) block[i] = first_block + static_cast<uint64_t>(i);
  Vec<uint64_t> c0 = block, c1 = block >> 32, c2 = Vec<uint64_t>{} + step, c3{};
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Vec<uint64_t> p0 = multiply_low(c0, 0xD2511F53u), p1 = multiply_low(c2, 0xCD9E8D57u);
    c0 = (p1 >> 32) ^ c1 ^ key0;
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ key1;
    c3 = p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const Vec<uint64_t> low = (c0 & 0xffffffffu) | (c1 << 32), high = (c2 & 0xffffffffu) | (c3 << 32);
  // Interleaves low and high.
#if defined(__AVX512F__)
  const Vec<uint64_t> first = __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
  const Vec<uint64_t> second = __builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  const Vec<uint64_t> first = __builtin_shufflevector(low, high, 0, 4, 1, 5);
  const Vec<uint64_t> second = __builtin_shufflevector(low, high, 2, 6, 3, 7);
#else
  const Vec<uint64_t> first = __builtin_shufflevector(low, high, 0, 2);
  const Vec<uint64_t> second = __builtin_shufflevector(low, high, 1, 3);
#endif
  std::memcpy(draws, &first, sizeof(first));
  std::memcpy(draws + kPhiloxGroup / 2, &second, sizeof(second));
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
