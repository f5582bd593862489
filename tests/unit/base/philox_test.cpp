#include "base/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/dtype.h"

using namespace trainer;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffffu;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, PortableLogAndSincosMatchLibm) {
  double worst = 0;
  for (uint32_t i = 0; i < 200000; ++i) {
    const double x = (static_cast<double>(philox_at({1, 2}, i)) + 1.0) * 0x1p-32, turn = x - 0x1p-32;
    worst = std::max(worst, std::abs(portable_log(x) - std::log(x)) / std::max(1.0, std::abs(std::log(x))));
    const SinCos sc = portable_sincos_2pi(turn);
    worst =
        std::max({worst, std::abs(sc.sin - std::sin(2 * M_PI * turn)), std::abs(sc.cos - std::cos(2 * M_PI * turn))});
  }
  EXPECT_LT(worst, 1e-15);
  EXPECT_EQ(portable_log(1.0), 0.0);
}

TEST(Philox, NormalsHaveUnitMomentsAndFixedBits) {
  const PhiloxKey key = philox_key(42, "blocks.0.attn.q.weight");
  double sum = 0, squares = 0, fourth = 0;
  const int blocks = 100000;
  for (int b = 0; b < blocks; ++b)
    for (const double z : philox_normals(key, static_cast<uint64_t>(b)))
      sum += z, squares += z * z, fourth += z * z * z * z;
  const double n = 4.0 * blocks;
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.01);
  EXPECT_NEAR(fourth / n, 3, 0.05);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecials) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(1.00390625f).bits, 0x3f80);  // tie, down to even
  EXPECT_EQ(bf16(1.01171875f).bits, 0x3f82);  // tie, up to even
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(bf16(std::nanf("")).bits, 0x7fff);
  EXPECT_EQ(static_cast<float>(bf16(1e-40f)), std::bit_cast<float>(static_cast<uint32_t>(bf16(1e-40f).bits) << 16));
  EXPECT_NE(bf16(1e-40f).bits, 0);  // subnormals are kept
}
