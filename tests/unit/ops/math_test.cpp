// The plain instance of the vector functions; the other instances are tested with the same bounds through the
// operators.
#define TRAINER_ISA plain
#include "ops/cpu/math_bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <complex>
#include <limits>
#include <random>

namespace trainer::ops::plain {
namespace {

template <typename T>
struct VectorMath : ::testing::Test {};
using Types = ::testing::Types<double, float>;
TYPED_TEST_SUITE(VectorMath, Types);

template <typename T, typename F>
T lane(F&& f, T x) {
  T lanes[kLanes<T>];
  store(lanes, f(splat<T>(x)));
  return lanes[kLanes<T> - 1];
}

template <typename T>
void expect_ulps(T got, long double want, double ulps, T x, const char* name) {
  const long double bound = ulps * std::numeric_limits<T>::epsilon() * std::abs(want);
  EXPECT_LE(std::abs(static_cast<long double>(got) - want), bound) << name << "(" << x << ") = " << got;
}

TYPED_TEST(VectorMath, StaysWithinAFewUnitsOfTheLastPlace) {
  using T = TypeParam;
  std::mt19937_64 engine(31);
  const double range = sizeof(T) == 4 ? 85 : 700;
  for (int i = 0; i < 100000; ++i) {
    auto between = [&](double low, double high) {
      return static_cast<T>(std::uniform_real_distribution<double>(low, high)(engine));
    };
    const T wide = between(-range, range), x = i % 2 == 0 ? between(-10, 10) : between(-0.01, 0.01);
    const long double y = x;
    expect_ulps(lane<T>([](Vec<T> v) { return vexp(v); }, wide), std::exp(static_cast<long double>(wide)), 2, wide,
                "exp");
    expect_ulps(lane<T>([](Vec<T> v) { return vsilu(v); }, x), y / (1 + std::exp(-y)), 4, x, "silu");
  }
}

TYPED_TEST(VectorMath, GeluGradientMatchesTheComplexStep) {
  using T = TypeParam;
  using Complex = std::complex<long double>;
  const long double h = 1e-60L, root = 0.797884560802865355879892119868763737L;
  for (int i = -4000; i <= 4000; ++i) {
    const T x = static_cast<T>(i) / 400;
    const Complex z(static_cast<long double>(x), h);
    const long double want = (0.5L * z * (1.0L + std::tanh(root * (z + 0.044715L * z * z * z)))).imag() / h;
    const T got = lane<T>([](Vec<T> v) { return vgelu_grad(v); }, x);
    EXPECT_LE(std::abs(static_cast<long double>(got) - want), 4 * std::numeric_limits<T>::epsilon()) << "x = " << x;
  }
}

/// x·Φ(x), and its derivative.
long double exact_gelu(long double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0L)); }
long double exact_slope(long double x) {
  return std::erfc(-x / std::sqrt(2.0L)) / 2 + x * std::exp(-x * x / 2) * 0.398942280401432677939946L;
}

// 1 + x²/2 is the condition of e^(−x²/2), which a C library's erfc has too.
TYPED_TEST(VectorMath, ExactGeluKeepsTheAccuracyOfItsTail) {
  using T = TypeParam;
  const double range = sizeof(T) == 4 ? 12.5 : 36, half_ulp = std::numeric_limits<T>::epsilon() / 2;
  for (int i = -100'000; i <= 100'000; ++i) {
    const T x = static_cast<T>(range * i / 100'000);
    const auto wide = static_cast<long double>(x);
    const auto condition = static_cast<double>(1 + wide * wide / 2);
    const T got = lane<T>([](Vec<T> v) { return vgelu_erf(v); }, x);
    ASSERT_LE(std::abs(static_cast<long double>(got) - exact_gelu(wide)),
              6 * half_ulp * condition * std::abs(exact_gelu(wide)))
        << "x = " << x;
    const T slope = lane<T>([](Vec<T> v) { return vgelu_erf_grad(v); }, x);
    ASSERT_LE(std::abs(static_cast<long double>(slope) - exact_slope(wide)), 6 * half_ulp) << "x = " << x;
  }
}

TYPED_TEST(VectorMath, ExactGeluHasTheValuesOfTheReference) {
  using T = TypeParam;
  const struct {
    double x, value, slope;
  } all[] = {{-6, -5.919525869479969e-09, -3.546870945402639e-08},
             {-3, -4.049694094890310e-03, -1.194564720418392e-02},
             {-1, -1.586552539314571e-01, -8.331547058768629e-02},
             {0.5, 3.457312306370066e-01, 8.674951246561629e-01},
             {2, 1.954499736103642, 1.085231801078197}};
  for (const auto& [x, value, slope] : all) {
    const double bound = sizeof(T) == 4 ? 1e-6 : 1e-15;
    const T at = static_cast<T>(x);
    EXPECT_NEAR(lane<T>([](Vec<T> v) { return vgelu_erf(v); }, at), value, bound);
    EXPECT_NEAR(lane<T>([](Vec<T> v) { return vgelu_erf_grad(v); }, at), slope, bound);
  }
}

TYPED_TEST(VectorMath, HandlesInfinitiesAndNan) {
  using T = TypeParam;
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  auto exp = [](T x) { return lane<T>([](Vec<T> v) { return vexp(v); }, x); };
  EXPECT_EQ(exp(-inf), T(0));
  EXPECT_EQ(exp(inf), inf);
  EXPECT_EQ(exp(T(1000)), inf);
  EXPECT_EQ(exp(T(-1000)), T(0));
  EXPECT_EQ(exp(T(0)), T(1));
  EXPECT_TRUE(std::isnan(exp(nan)));
  auto grad = [](T x) { return lane<T>([](Vec<T> v) { return vgelu_grad(v); }, x); };
  EXPECT_EQ(grad(T(1e30)), T(1));
  EXPECT_EQ(grad(T(-1e30)), T(0));
  EXPECT_TRUE(std::isnan(grad(nan)));
  EXPECT_EQ(lane<T>([](Vec<T> v) { return gelu_with_slope<T>(v).value; }, -inf), T(0));
  const auto exact = [](T x) { return lane<T>([](Vec<T> v) { return vgelu_erf(v); }, x); };
  const auto exact_grad = [](T x) { return lane<T>([](Vec<T> v) { return vgelu_erf_grad(v); }, x); };
  EXPECT_EQ(exact(inf), inf);
  EXPECT_EQ(exact(T(1e30)), T(1e30));
  EXPECT_EQ(exact(T(0)), T(0));
  EXPECT_TRUE(std::signbit(exact(T(-0.0))));
  EXPECT_EQ(exact(std::numeric_limits<T>::denorm_min() * 4), std::numeric_limits<T>::denorm_min() * 2);
  for (const T far : {T(-1e30), -inf}) {
    EXPECT_EQ(exact(far), T(0));
    EXPECT_EQ(exact_grad(far), T(0));
  }
  for (const T far : {T(1e30), inf}) EXPECT_EQ(exact_grad(far), T(1));
  EXPECT_TRUE(std::isnan(exact(nan)));
  EXPECT_TRUE(std::isnan(exact_grad(nan)));
}

// math_bf16.h. The tests of tiles check that other instruction sets give the same bits.

TEST(MathForBf16, StaysWithinItsBounds) {
  std::mt19937_64 engine(7);
  const auto between = [&](double low, double high) {
    return static_cast<float>(std::uniform_real_distribution<double>(low, high)(engine));
  };
  const double root = 0.797884560802865355879892119868763737;
  for (int i = 0; i < 100000; ++i) {
    const float power = between(-99, 127), near_zero = between(-1e-3, 1e-3), x = between(-12, 12);
    for (const float p : {power, near_zero}) {
      const double want = std::exp2(static_cast<double>(p));
      EXPECT_LE(std::abs(lane<float>([](Vec<float> v) { return vexp2_near(v); }, p) - want), 4e-7 * want) << p;
    }
    const float whole = std::exp2(between(-80, 80));
    EXPECT_LE(
        std::abs(lane<float>([](Vec<float> v) { return vinverse_near(v); }, whole) * static_cast<double>(whole) - 1),
        1e-6)
        << whole;
    const double y = x, u = root * (y + 0.044715 * y * y * y), s = 1 / (1 + std::exp(-2 * u));
    EXPECT_LE(std::abs(lane<float>([](Vec<float> v) { return vgelu_near(v); }, x) - y * s),
              2e-6 * (1e-3 + std::abs(y) * s))
        << x;
    const double slope = s + y * s * (1 - s) * 2 * root * (1 + 3 * 0.044715 * y * y);
    EXPECT_LE(std::abs(lane<float>([](Vec<float> v) { return vgelu_grad_near(v); }, x) - slope), 5e-6) << x;
  }
}

// All values of bf16 on which the function is not negligible.
TEST(MathForBf16, ExactGeluStaysWithinItsBounds) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = std::bit_cast<float>(bits << 16);
    if (!(std::abs(x) < 11.0f)) continue;
    const auto wide = static_cast<long double>(x);
    const auto bound = static_cast<double>(4e-6L * (1 + wide * wide / 2));
    EXPECT_LE(std::abs(lane<float>([](Vec<float> v) { return vgelu_erf_near(v); }, x) - exact_gelu(wide)),
              bound * std::abs(exact_gelu(wide)) + 1e-37)
        << x;
    EXPECT_LE(std::abs(lane<float>([](Vec<float> v) { return vgelu_erf_grad_near(v); }, x) - exact_slope(wide)), 5e-6)
        << x;
  }
}

TEST(MathForBf16, HandlesTheEndsOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto exp2 = [](float x) { return lane<float>([](Vec<float> v) { return vexp2_near(v); }, x); };
  EXPECT_EQ(exp2(0), 1);
  EXPECT_EQ(exp2(-0.0f), 1);
  EXPECT_EQ(exp2(-inf), 0x1p-100f);
  EXPECT_EQ(exp2(-1000), 0x1p-100f);
  EXPECT_TRUE(std::isnan(exp2(nan)));
  const auto gelu = [](float x) { return lane<float>([](Vec<float> v) { return vgelu_near(v); }, x); };
  EXPECT_EQ(gelu(0), 0);
  EXPECT_NEAR(gelu(1e10f), 1e10, 1e4);
  EXPECT_NEAR(gelu(-1e10f), 0, 1e-12);
  EXPECT_TRUE(std::isnan(gelu(nan)));
  const auto slope = [](float x) { return lane<float>([](Vec<float> v) { return vgelu_grad_near(v); }, x); };
  EXPECT_NEAR(slope(1e30f), 1, 1e-6);
  EXPECT_NEAR(slope(-1e30f), 0, 1e-12);
  EXPECT_TRUE(std::isnan(slope(nan)));
  const auto exact = [](float x) { return lane<float>([](Vec<float> v) { return vgelu_erf_near(v); }, x); };
  const auto exact_slope_at = [](float x) {
    return lane<float>([](Vec<float> v) { return vgelu_erf_grad_near(v); }, x);
  };
  EXPECT_EQ(exact(0), 0);
  EXPECT_EQ(exact(inf), inf);
  EXPECT_NEAR(exact(-inf), 0, 1e-28);
  EXPECT_TRUE(std::isnan(exact(nan)));
  EXPECT_EQ(exact_slope_at(inf), 1);
  EXPECT_NEAR(exact_slope_at(-inf), 0, 1e-28);
  EXPECT_TRUE(std::isnan(exact_slope_at(nan)));
}

TEST(MathForBf16, RoundsToNearestEvenAndDropsSubnormals) {
  std::mt19937 engine(3);
  for (int i = 0; i < 20000; ++i) {
    float in[2 * kLanes<float>];
    for (float& x : in) {
      const uint32_t bits = engine();
      std::memcpy(&x, &bits, sizeof(x));
    }
    bf16 out[2 * kLanes<float>];
    store_halves(out, round_halves(load(in), load(in + kLanes<float>)));
    for (int j = 0; j < 2 * kLanes<float>; ++j) {
      const bool small = std::abs(in[j]) < 0x1p-126f;
      if (std::isnan(in[j])) {
        EXPECT_TRUE(std::isnan(static_cast<float>(out[j])));
      } else {
        EXPECT_EQ(static_cast<float>(out[j]), small ? 0.0f : static_cast<float>(bf16(in[j]))) << in[j];
        EXPECT_EQ(std::signbit(static_cast<float>(out[j])), std::signbit(in[j]));
      }
    }
  }
}

TEST(MathForBf16, TakesPairsApartAndTogether) {
  constexpr int kCount = 2 * kLanes<float>;
  bf16 a[kCount], b[kCount], pairs[2 * kCount], again[kCount];
  for (int i = 0; i < kCount; ++i) a[i] = bf16(static_cast<float>(i)), b[i] = bf16(static_cast<float>(100 + i));
  const Halves left = load_halves(a), right = load_halves(b);
  store_halves(pairs, interleave<false>(left, right));
  store_halves(pairs + kCount, interleave<true>(left, right));
  store_halves(again, round_even_odd(even_elements(left), odd_elements(left)));
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(static_cast<float>(pairs[2 * i]), static_cast<float>(i));
    EXPECT_EQ(static_cast<float>(pairs[2 * i + 1]), static_cast<float>(100 + i));
    EXPECT_EQ(static_cast<float>(again[i]), static_cast<float>(i));
  }
}

}  // namespace
}  // namespace trainer::ops::plain
