// Box-Muller on Philox draws, a pair of draws per lane. The operations and their order are those of base/philox.cpp, so
// results are bitwise identical.
#include "ops/cpu/normals_kernels.h"

#include "ops/cpu/canonical.h"
#include "ops/cpu/philox_lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

using Double = Vec<double>;
using Bits = Vec<uint64_t>;
constexpr int kPairLanes = kLanes<double>;
static_assert(kPhiloxGroup / 4 <= kMostNormalBlocks);

[[gnu::always_inline]] inline Double constant(double x) { return splat<double>(x); }
/// Converts integers below 2^52 exactly.
[[gnu::always_inline]] inline Double to_double(Bits x) {
  return (Double)(x | (Bits{} + 0x4330000000000000ull)) - constant(0x1p52);
}
[[gnu::always_inline]] inline Double select(Bits mask, Double yes, Double no) {
  return (Double)((mask & (Bits)yes) | (~mask & (Bits)no));
}

/// log(x), x in (0, 1].
[[gnu::always_inline]] inline Double log_lanes(Double x) {
  const Bits bits = (Bits)x;
  Bits exponent = (bits >> 52) & 0x7ffu;
  Double m = (Double)((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  const Bits above = (Bits)(m > constant(1.4142135623730951));
  m = select(above, m * 0.5, m);
  exponent -= above;  // adds 1 if the mask is all ones
  const Double s = (m - 1.0) / (m + 1.0), z = s * s;
  Double sum = constant(1.0 / 23.0);
#pragma GCC unroll 11
  for (int k = 21; k >= 1; k -= 2) sum = fused<double>(sum, z, constant(1.0 / k));
  return fused<double>(to_double(exponent) - 1023.0, constant(0.6931471805599453), 2.0 * s * sum);
}

struct Turn {
  Double sin, cos;
};
/// sin and cos of 2π·x, x in [0, 1).
[[gnu::always_inline]] inline Turn sincos_lanes(Double x) {
  const Double turns = 4.0 * x, shifted = turns + 0.5;
  Bits q{};  // shifted, truncated
  for (const double step : {1.0, 2.0, 3.0, 4.0}) q -= (Bits)(shifted >= constant(step));
  const Double angle = (turns - to_double(q)) * 1.5707963267948966, z = angle * angle;
  Double s = constant(1.0 / 355687428096000.0), c = constant(1.0 / 20922789888000.0);  // 1/17!, 1/16!
  for (const double term : {-1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                            -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0})
    s = fused<double>(s, z, constant(term));
  for (const double term : {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0,
                            1.0 / 24.0, -1.0 / 2.0, 1.0})
    c = fused<double>(c, z, constant(term));
  s *= angle;
  const Bits odd = Bits{} - (q & 1u), sign = Bits{} + 0x8000000000000000ull;
  const Bits sin_negative = (q & 2u) << 62, cos_negative = ((q + 1u) & 2u) << 62;
  return {(Double)((Bits)select(odd, c, s) ^ (sin_negative & sign)),
          (Double)((Bits)select(odd, s, c) ^ (cos_negative & sign))};
}

void group(uint32_t key0, uint32_t key1, uint64_t first_block, double* out) {
  uint32_t draws[kPhiloxGroup];
  philox_group(key0, key1, 0, first_block, draws);
  for (int pair = 0; pair < kPhiloxGroup / 2; pair += kPairLanes) {
    Bits both;
    std::memcpy(&both, draws + 2 * pair, sizeof(both));
    const Double radius_draw = (to_double(both & 0xffffffffu) + 1.0) * 0x1p-32;  // (0, 1]
    const Double radius = square_root(-2.0 * log_lanes(radius_draw));
    const Turn turn = sincos_lanes(to_double(both >> 32) * 0x1p-32);
    const Double first = radius * turn.cos, second = radius * turn.sin;
    for (int i = 0; i < kPairLanes; ++i) {
      out[2 * (pair + i)] = first[i];
      out[2 * (pair + i) + 1] = second[i];
    }
  }
}

}  // namespace

extern const NormalsKernel normals_kernel;
constinit const NormalsKernel normals_kernel{.blocks = kPhiloxGroup / 4, .group = group};

}  // namespace trainer::ops::TRAINER_ISA
