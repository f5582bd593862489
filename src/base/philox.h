#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011). A draw is a pure function of (seed, name, global
// index, step), so weights and dropout masks do not depend on the layout, the thread or the device. The constexpr
// functions here also run inside CUDA kernels.
#include <array>
#include <cstdint>
#include <string_view>

namespace trainer {

using Philox4 = std::array<uint32_t, 4>;
struct PhiloxKey {
  uint32_t k0, k1;
};

/// Returns the key of a stream: (seed, name of the tensor or dropout site).
PhiloxKey philox_key(uint64_t seed, std::string_view name);

constexpr Philox4 philox(Philox4 ctr, PhiloxKey key) {
  uint32_t k0 = key.k0, k1 = key.k1;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * ctr[0], p1 = uint64_t{0xCD9E8D57u} * ctr[2];
    ctr = {static_cast<uint32_t>(p1 >> 32) ^ ctr[1] ^ k0, static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ ctr[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return ctr;
}

/// Returns the four draws of elements 4·block … 4·block + 3 at `step`.
constexpr Philox4 philox_block(PhiloxKey key, uint64_t block, uint32_t step = 0) {
  return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), step, 0}, key);
}
/// Returns the draw of one element.
constexpr uint32_t philox_at(PhiloxKey key, uint64_t index, uint32_t step = 0) {
  return philox_block(key, index / 4, step)[index % 4];
}

/// Computes log(x) for normal x > 0, and sin and cos of 2π·x for x in [0, 1). They use + − × ÷ and fma only, so results
/// are bitwise identical on every device. The absolute error is below 1e-15 (of the logarithm, for x in (0, 1]).
double portable_log(double x);
struct SinCos {
  double sin, cos;
};
SinCos portable_sincos_2pi(double x);

/// Returns four standard normal draws for elements 4·block … 4·block + 3 (Box–Muller on pairs of 32-bit draws).
std::array<double, 4> philox_normals(PhiloxKey key, uint64_t block);

}  // namespace trainer
