#pragma once
// Matrix tiles, for kernel files (*.isa.cpp; see simd.h for the unnamed namespace). There are eight registers of 16
// rows × 64 bytes and one arithmetic operation, sums of products of bf16 pairs. CPUs with AVX-512 and AMX use AMX
// (device::Isa::amx). Other instruction sets compute the same in plain C++: slow, but the loops around tiles can be
// tested on any CPU.
//
// A tile of the left operand holds 16 rows of 32 elements along k; one of the right operand, 16 pairs along k,
// [pair][column][2]; one of sums, 16 × 16 floats. Subnormals are flushed to zero in operands, products and sums,
// regardless of MXCSR.
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

inline constexpr int64_t kTileRows = 16, kTileTerms = 32, kTileElements = kTileRows * kTileTerms;

#if defined(__AVX512F__)

/// Must be called once on each thread before it uses tiles. Clears all tiles.
inline void configure_tiles() {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const config;
  static_assert(sizeof(Config) == 64);
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
// The compiler does not model tiles, so these statements are volatile.
template <int Tile>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
/// Loads rows of 64 bytes, `stride` bytes apart.
template <int Tile>
[[gnu::always_inline]] inline void load_tile(const void* from, int64_t stride = 64) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
}
/// Loads a tile with a hint that these bytes need not stay in L1.
template <int Tile>
[[gnu::always_inline]] inline void load_passing_tile(const void* from, int64_t stride = 64) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
[[gnu::always_inline]] inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
}
/// Sums += Left·Right.
template <int Sums, int Left, int Right>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Left), "i"(Right));
}

#else

struct Tile {
  std::byte bytes[1024];
};
inline thread_local Tile tile_file[8];

inline void configure_tiles() { std::memset(tile_file, 0, sizeof(tile_file)); }
template <int Tile>
inline void clear_tile() {
  std::memset(&tile_file[Tile], 0, sizeof(tile_file[Tile]));
}
template <int Tile>
inline void load_tile(const void* from, int64_t stride = 64) {
  for (int64_t row = 0; row < kTileRows; ++row)
    std::memcpy(tile_file[Tile].bytes + row * 64, static_cast<const std::byte*>(from) + row * stride, 64);
}
template <int Tile>
inline void load_passing_tile(const void* from, int64_t stride = 64) {
  load_tile<Tile>(from, stride);
}
template <int Tile>
inline void store_tile(void* to, int64_t stride) {
  for (int64_t row = 0; row < kTileRows; ++row)
    std::memcpy(static_cast<std::byte*>(to) + row * stride, tile_file[Tile].bytes + row * 64, 64);
}
inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }
/// Computes what the instruction does: even and odd elements along k are summed separately, and both sums are added
/// together and then to the tile.
template <int Sums, int Left, int Right>
inline void multiply_tiles() {
  bf16 left[kTileElements], right[kTileElements];
  float sums[kTileRows * kTileRows];
  std::memcpy(left, tile_file[Left].bytes, sizeof(left));
  std::memcpy(right, tile_file[Right].bytes, sizeof(right));
  std::memcpy(sums, tile_file[Sums].bytes, sizeof(sums));
  for (int64_t row = 0; row < kTileRows; ++row)
    for (int64_t column = 0; column < kTileRows; ++column) {
      float parity[2] = {};
      for (int64_t term = 0; term < kTileTerms; ++term) {
        float& sum = parity[term % 2];
        const float x = flushed(static_cast<float>(left[row * kTileTerms + term]));
        const float y = flushed(static_cast<float>(right[(term / 2 * kTileRows + column) * 2 + term % 2]));
        sum = flushed(__builtin_fmaf(x, y, sum));
      }
      float& sum = sums[row * kTileRows + column];
      sum = flushed(flushed(sum) + flushed(parity[0] + parity[1]));
    }
  std::memcpy(tile_file[Sums].bytes, sums, sizeof(sums));
}

#endif

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
