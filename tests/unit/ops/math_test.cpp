// The plain instance of the vector functions; the others are held to the same figures through the operators.
#define TRAINER_ISA plain
#include "ops/cpu/math.h"

#include <gtest/gtest.h>

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
    expect_ulps(lane<T>([](Vec<T> v) { return vtanh(v); }, x), std::tanh(y), 4, x, "tanh");
    expect_ulps(lane<T>([](Vec<T> v) { return vsigmoid(v); }, x), 1 / (1 + std::exp(-y)), 4, x, "sigmoid");
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
  auto tanh = [](T x) { return lane<T>([](Vec<T> v) { return vtanh(v); }, x); };
  EXPECT_EQ(tanh(inf), T(1));
  EXPECT_EQ(tanh(-inf), T(-1));
  EXPECT_TRUE(std::signbit(tanh(T(-0.0))));
  EXPECT_TRUE(std::isnan(tanh(nan)));
  auto grad = [](T x) { return lane<T>([](Vec<T> v) { return vgelu_grad(v); }, x); };
  EXPECT_EQ(grad(T(1e30)), T(1));
  EXPECT_EQ(grad(T(-1e30)), T(0));
  EXPECT_TRUE(std::isnan(grad(nan)));
}

}  // namespace
}  // namespace trainer::ops::plain
