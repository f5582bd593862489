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
// Vectors computed together, operation by operation, since a single one would wait for the latency of its chain of
// operations.
constexpr int kTogether = 4;
constexpr int kGroups = kTogether * 2 * kPairLanes / kPhiloxGroup;  // groups of Philox draws in a call
static_assert(kGroups * kPhiloxGroup / 4 <= kMostNormalBlocks);

struct Doubles {
  Double v[kTogether];
};
/// Returns fn(0), fn(1), … as vectors.
template <typename F>
[[gnu::always_inline]] inline Doubles each(F fn) {
  Doubles result;
#pragma GCC unroll 4
  for (int u = 0; u < kTogether; ++u) result.v[u] = fn(u);
  return result;
}

[[gnu::always_inline]] inline Double constant(double x) { return splat<double>(x); }
/// Converts integers below 2^52 exactly.
[[gnu::always_inline]] inline Double to_double(Bits x) {
  return (Double)(x | (Bits{} + 0x4330000000000000ull)) - constant(0x1p52);
}
[[gnu::always_inline]] inline Double select(Bits mask, Double yes, Double no) {
  return (Double)((mask & (Bits)yes) | (~mask & (Bits)no));
}
/// Returns sum·z + term.
[[gnu::always_inline]] inline Doubles horner(const Doubles& sum, const Doubles& z, double term) {
  return each([&](int u) __attribute__((always_inline)) { return fused<double>(sum.v[u], z.v[u], constant(term)); });
}

/// log(x), x in (0, 1].
[[gnu::always_inline]] inline Doubles log_lanes(const Doubles& x) {
  Doubles exponent;
  const Doubles s = each([&](int u) __attribute__((always_inline)) {
    const Bits bits = (Bits)x.v[u];
    const Double m = (Double)((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    const Bits above = (Bits)(m > constant(1.4142135623730951));
    exponent.v[u] = to_double(((bits >> 52) & 0x7ffu) - above) - 1023.0;  // adds 1 if the mask is all ones
    const Double reduced = select(above, m * 0.5, m);
    return (reduced - 1.0) / (reduced + 1.0);
  });
  const Doubles z = each([&](int u) __attribute__((always_inline)) { return s.v[u] * s.v[u]; });
  Doubles sum = each([](int) __attribute__((always_inline)) { return constant(1.0 / 23.0); });
#pragma GCC unroll 11
  for (int k = 21; k >= 1; k -= 2) sum = horner(sum, z, 1.0 / k);
  return each([&](int u) __attribute__((always_inline)) {
    return fused<double>(exponent.v[u], constant(0.6931471805599453), 2.0 * s.v[u] * sum.v[u]);
  });
}

/// sin and cos of 2π·x, x in [0, 1).
[[gnu::always_inline]] inline void sincos_lanes(const Doubles& x, Doubles& sin, Doubles& cos) {
  Bits quadrant[kTogether];
  const Doubles angle = each([&](int u) __attribute__((always_inline)) {
    const Double turns = 4.0 * x.v[u], shifted = turns + 0.5;
    Bits q{};  // shifted, truncated
    for (const double step : {1.0, 2.0, 3.0, 4.0}) q -= (Bits)(shifted >= constant(step));
    quadrant[u] = q;
    return (turns - to_double(q)) * 1.5707963267948966;
  });
  const Doubles z = each([&](int u) __attribute__((always_inline)) { return angle.v[u] * angle.v[u]; });
  Doubles s = each([](int) __attribute__((always_inline)) { return constant(1.0 / 355687428096000.0); });  // 1/17!
  Doubles c = each([](int) __attribute__((always_inline)) { return constant(1.0 / 20922789888000.0); });   // 1/16!
  for (const double term : {-1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                            -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0})
    s = horner(s, z, term);
  for (const double term : {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0,
                            1.0 / 24.0, -1.0 / 2.0, 1.0})
    c = horner(c, z, term);
#pragma GCC unroll 4
  for (int u = 0; u < kTogether; ++u) {
    const Double sine = s.v[u] * angle.v[u];
    const Bits q = quadrant[u], odd = Bits{} - (q & 1u), sign = Bits{} + 0x8000000000000000ull;
    const Bits sin_negative = (q & 2u) << 62, cos_negative = ((q + 1u) & 2u) << 62;
    sin.v[u] = (Double)((Bits)select(odd, c.v[u], sine) ^ (sin_negative & sign));
    cos.v[u] = (Double)((Bits)select(odd, sine, c.v[u]) ^ (cos_negative & sign));
  }
}

void group(uint32_t key0, uint32_t key1, uint64_t first_block, double* out) {
  alignas(64) uint32_t draws[kGroups * kPhiloxGroup];
#pragma GCC unroll 2
  for (int i = 0; i < kGroups; ++i)
    philox_group(key0, key1, 0, first_block + static_cast<uint64_t>(i * kPhiloxGroup / 4), draws + i * kPhiloxGroup);
  const auto pairs = [&](int u) __attribute__((always_inline)) {
    Bits both;
    std::memcpy(&both, draws + 2 * kPairLanes * u, sizeof(both));
    return both;
  };
  const Doubles log = log_lanes(each([&](int u) __attribute__((always_inline)) {
    return (to_double(pairs(u) & 0xffffffffu) + 1.0) * 0x1p-32;  // (0, 1]
  }));
  Doubles sin, cos;
  sincos_lanes(each([&](int u) __attribute__((always_inline)) { return to_double(pairs(u) >> 32) * 0x1p-32; }), sin,
               cos);
  for (int u = 0; u < kTogether; ++u, out += 2 * kPairLanes) {
    const Double radius = square_root(-2.0 * log.v[u]), first = radius * cos.v[u], second = radius * sin.v[u];
    for (int i = 0; i < kPairLanes; ++i) {
      out[2 * i] = first[i];
      out[2 * i + 1] = second[i];
    }
  }
}

}  // namespace

extern const NormalsKernel normals_kernel;
constinit const NormalsKernel normals_kernel{.blocks = kGroups * kPhiloxGroup / 4, .group = group};

}  // namespace trainer::ops::TRAINER_ISA
