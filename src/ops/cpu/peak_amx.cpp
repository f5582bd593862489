#include <immintrin.h>

#include "ops/cpu/peak.h"

namespace trainer::ops {
namespace {

/// Eight tiles of 16 rows × 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace

__attribute__((target("amx-tile,amx-bf16"))) double amx_peak_loop(const void* operands, int64_t rounds, void* sink) {
  constexpr int64_t kTileBytes = 1024, kHalf = kPeakOperandBytes / 2, kSteps = kHalf / (2 * kTileBytes);
  const TileConfig config;
  asm volatile("" ::"m"(config) : "memory");  // the intrinsic does not say that it reads memory
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const char *left = static_cast<const char*>(operands), *right = left + kHalf;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t step = 0; step < kSteps; ++step) {
      _tile_loadd(4, left + 2 * step * kTileBytes, 64);
      _tile_loadd(5, left + (2 * step + 1) * kTileBytes, 64);
      _tile_loadd(6, right + 2 * step * kTileBytes, 64);
      _tile_loadd(7, right + (2 * step + 1) * kTileBytes, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  char* const out = static_cast<char*>(sink);
  _tile_stored(0, out, 64);
  _tile_stored(1, out + kTileBytes, 64);
  _tile_stored(2, out + 2 * kTileBytes, 64);
  _tile_stored(3, out + 3 * kTileBytes, 64);
  _tile_release();
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(kSteps * rounds);
}

}  // namespace trainer::ops
