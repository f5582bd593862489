#include "comm/reduce_kernels.h"

#include <cmath>
#include <limits>

#include "unit/comm/rig.h"

namespace trainer::comm {
namespace {

std::vector<device::Isa> usable() {
  std::vector<device::Isa> sets;
  for (const device::Isa isa : device::kIsas)
    if (isa <= device::detect_isa()) sets.push_back(isa);
  return sets;
}

template <typename T>
class ReduceKernelsOf : public testing::Test {};
using Floats = testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(ReduceKernelsOf, Floats);

TYPED_TEST(ReduceKernelsOf, TreatInfinitiesAndNaNsAlikeOnEveryInstructionSet) {
  using T = TypeParam;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<T> specials;
  for (const float x : {0.0f, -0.0f, 1.0f, -3.5f, inf, -inf, nan, std::numeric_limits<float>::max(), 1e-40f})
    specials.push_back(T(x));
  std::vector<T> a, b;
  for (const T x : specials)
    for (const T y : specials) {
      a.push_back(x);
      b.push_back(y);
    }
  ASSERT_EQ(a.size() % 2, 1u);  // a remainder after the SIMD vectors
  const size_t type = static_cast<size_t>(DTypeOf<T>::value);
  for (const device::Isa isa : usable()) {
    const ReduceKernels& kernels = reduce_kernels(isa);
    std::vector<T> sum = a, largest(a.size());
    kernels.combine[0][type](sum.data(), b.data(), sum.data(), static_cast<int64_t>(a.size()));  // in place
    kernels.combine[1][type](a.data(), b.data(), largest.data(), static_cast<int64_t>(a.size()));
    for (size_t i = 0; i < a.size(); ++i) {
      const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
      const double right = static_cast<double>(
          T(static_cast<AccumulatorOf<T>>(static_cast<AccumulatorOf<T>>(a[i]) + static_cast<AccumulatorOf<T>>(b[i]))));
      EXPECT_TRUE(static_cast<double>(sum[i]) == right ||
                  (std::isnan(right) && std::isnan(static_cast<double>(sum[i]))))
          << x << " + " << y;
      if (std::isnan(x) || std::isnan(y)) {
        EXPECT_TRUE(std::isnan(static_cast<double>(largest[i]))) << x << ", " << y;
      } else {
        EXPECT_EQ(static_cast<double>(largest[i]), std::max(x, y));
      }
    }
  }
}

}  // namespace
}  // namespace trainer::comm
