#include "ops/fingerprint.h"

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

template <typename T>
struct FingerprintOf : DeviceTest {};
using ComputeTypes = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(FingerprintOf, ComputeTypes);

template <typename T>
uint64_t expected_of(const TestTensor& x, const Fingerprint& part) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  uint64_t sum = 0;
  for (int64_t r = 0; r < part.rows; ++r)
    for (int64_t c = 0; c < part.cols; ++c)
      sum += static_cast<uint64_t>(std::bit_cast<Bits>(x.tensor().as<T>()[r * part.pitch + c * part.stride])) *
             (2 * static_cast<uint64_t>(part.first + r * part.step + c) + 1);
  return sum;
}

// More parts than one launch takes: all of a tensor, rows with a pitch, columns of a transposed table.
TYPED_TEST(FingerprintOf, PartsIsTheSumOfBitsTimesOddNumbers) {
  using T = TypeParam;
  Normal draw(5);
  TestTensor x = TestTensor({150'000}, DTypeOf<T>::value).fill(draw);
  std::vector<Fingerprint> parts = {{.x = x, .cols = 150'000, .first = int64_t{1} << 40},
                                    {.x = x, .cols = 1},
                                    {.x = x, .rows = 90, .cols = 33, .pitch = 100, .first = 7, .step = 1000},
                                    {.x = x, .rows = 5, .cols = 3000, .pitch = 1, .stride = 40, .first = 2, .step = 1}};
  for (int64_t n = 1; n <= 70; ++n) parts.push_back({.x = x, .rows = n, .cols = 13, .pitch = n + 13, .step = 13});
  on_every_device(
      [&](TestExec& ex) {
        TestTensor sums({std::ssize(parts)}, DType::i64);
        std::vector<Fingerprint> copies = parts;  // on a GPU they get its pointers
        run(ex, Fingerprints{copies, sums});
        return std::vector<TestTensor>{sums};
      },
      [&](const std::vector<TestTensor>& out) {
        for (size_t i = 0; i < parts.size(); ++i)
          EXPECT_EQ(static_cast<uint64_t>(out[0].tensor().as<int64_t>()[i]), expected_of<T>(x, parts[i])) << i;
      });
}

TYPED_TEST(FingerprintOf, TensorsDiffersIfElementsAreSwappedOrASignChanges) {
  using T = TypeParam;
  Normal draw(6);
  TestTensor x = TestTensor({1000}, DTypeOf<T>::value).fill(draw), y = x, z = x;
  y.set(3, x.at(4));
  y.set(4, x.at(3));
  z.set(999, -x.at(999));
  on_every_device(
      [&](TestExec& ex) {
        const std::vector<Fingerprint> parts = {{.x = x, .cols = 1000}, {.x = y, .cols = 1000}, {.x = z, .cols = 1000}};
        TestTensor sums({3}, DType::i64);
        run(ex, Fingerprints{parts, sums});
        return std::vector<TestTensor>{sums};
      },
      [&](const std::vector<TestTensor>& out) {
        const int64_t* sums = out[0].tensor().as<int64_t>();
        EXPECT_NE(sums[0], sums[1]);
        EXPECT_NE(sums[0], sums[2]);
      });
}

}  // namespace
}  // namespace trainer::ops::testing
