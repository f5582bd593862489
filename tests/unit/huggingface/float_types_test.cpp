#include "huggingface/float_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace trainer::huggingface {
namespace {

/// Returns the value of an fp16 number by its definition.
double by_definition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_finite(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

TEST(Half, HasTheValueOfItsDefinition) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float_from_half(half);
    if (is_finite(half)) {
      ASSERT_EQ(static_cast<double>(value), by_definition(half)) << bits;
      ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << bits;
    } else {
      ASSERT_EQ(std::isnan(value), (half & 1023) != 0) << bits;
      ASSERT_FALSE(std::isfinite(value)) << bits;
    }
    if (!std::isnan(value)) {
      ASSERT_EQ(half_from_float(value), half) << bits;
    }
  }
  EXPECT_TRUE(std::isnan(float_from_half(half_from_float(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Half, IsTheNearestOneAndEvenBetweenTwo) {
  std::mt19937 random(5);
  std::uniform_int_distribution<uint32_t> any;
  for (int i = 0; i < 2'000'000; ++i) {
    const auto value = std::bit_cast<float>(any(random));
    const double exact = static_cast<double>(value);
    if (!std::isfinite(value)) continue;
    const uint16_t got = half_from_float(value);
    if (!is_finite(got)) {
      ASSERT_GE(std::abs(exact), 65520.0) << value;
      continue;
    }
    const double distance = std::abs(by_definition(got) - exact);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<uint16_t>(got + step);
      if (((other ^ got) & 0x8000) != 0) continue;
      const double farther = is_finite(other) ? std::abs(by_definition(other) - exact) : 65536.0 - std::abs(exact);
      ASSERT_TRUE(distance < farther || (distance == farther && got % 2 == 0)) << value << " became " << got;
    }
  }
}

TEST(FloatTypes, ConvertThereAndBackAndTellWhatIsLost) {
  const std::vector<float> values{0.0f, -0.0f, 1.5f, -2.25e-3f, 3e38f, 1e5f, std::numeric_limits<float>::infinity()};
  for (const FloatType type : {FloatType::f64, FloatType::f32, FloatType::bf16, FloatType::f16}) {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size_of(type)));
    std::vector<float> back(values.size());
    const size_t lost = from_float(values, type, bytes);
    EXPECT_EQ(lost, type == FloatType::f16 ? 4 : values.size()) << stored_name(type);
    to_float(type, bytes, back);
    for (const size_t exact : {0, 1, 2, 6}) EXPECT_EQ(back[exact], values[exact]);
    EXPECT_TRUE(std::signbit(back[1]));
    EXPECT_NEAR(back[3], values[3], std::abs(values[3]) / 256);
  }
  EXPECT_EQ(find_stored("BF16"), FloatType::bf16);
  EXPECT_FALSE(find_stored("I8"));
  EXPECT_EQ(find_named("fp16"), FloatType::f16);
  EXPECT_FALSE(find_named("float16"));
}

}  // namespace
}  // namespace trainer::huggingface
