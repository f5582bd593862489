#include "base/philox.h"

#include <bit>
#include <cmath>

namespace trainer {

PhiloxKey philox_key(uint64_t seed, std::string_view name) {
  uint32_t hash = 2166136261u;  // FNV-1a, 32 bits
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return {static_cast<uint32_t>(seed), hash ^ static_cast<uint32_t>(seed >> 32)};
}

double portable_log(double x) {
  // Splits x = m·2^e with m in [sqrt(1/2), sqrt(2)); log m = 2·atanh(s), s = (m−1)/(m+1), |s| < 0.1716.
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t e = static_cast<int64_t>((bits >> 52) & 0x7ff) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    e += 1;
  }
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double sum = 1.0 / 23.0;
  for (int k = 21; k >= 1; k -= 2) sum = std::fma(sum, z, 1.0 / k);
  const double ln2 = 0.6931471805599453;
  return std::fma(static_cast<double>(e), ln2, 2.0 * s * sum);
}

SinCos portable_sincos_2pi(double x) {
  // Splits off quarter turns: x = (q + r)/4 with |r| <= 1/2. Taylor series compute sin and cos of angle = r·π/2,
  // |angle| <= π/4.
  const double turns = 4.0 * x;
  const int q = static_cast<int>(turns + 0.5);
  const double angle = (turns - q) * 1.5707963267948966, z = angle * angle;
  double s = 1.0 / 355687428096000.0, c = 1.0 / 20922789888000.0;  // 1/17!, 1/16!
  static constexpr double kSin[] = {-1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                                    -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0,        1.0};
  static constexpr double kCos[] = {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0,
                                    -1.0 / 720.0,         1.0 / 24.0,        -1.0 / 2.0,       1.0};
  for (const double term : kSin) s = std::fma(s, z, term);
  for (const double term : kCos) c = std::fma(c, z, term);
  s *= angle;
  switch (q & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

std::array<double, 4> philox_normals(PhiloxKey key, uint64_t block) {
  const Philox4 u = philox_block(key, block);
  std::array<double, 4> out{};
  for (size_t pair = 0; pair < 2; ++pair) {
    const double radius_draw = (static_cast<double>(u[2 * pair]) + 1.0) * 0x1p-32;  // (0, 1]
    const double angle_draw = static_cast<double>(u[2 * pair + 1]) * 0x1p-32;       // [0, 1)
    const double radius = std::sqrt(-2.0 * portable_log(radius_draw));
    const SinCos turn = portable_sincos_2pi(angle_draw);
    out[2 * pair] = radius * turn.cos;
    out[2 * pair + 1] = radius * turn.sin;
  }
  return out;
}

}  // namespace trainer
