#include "ops/squared_norm.h"
#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

template <typename T>
struct SquaredNormOf : DeviceTest {};
using StateTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(SquaredNormOf, StateTypes);

TYPED_TEST(SquaredNormOf, AddsInAnOrderFixedByTheIndex) {
  using T = TypeParam;
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{100}, kNormBlock, 3 * kNormBlock + 77}) {
    SCOPED_TRACE(n);
    Normal draw(72);
    TestTensor x = TestTensor({n}, DTypeOf<T>::value).fill(draw);
    const int64_t blocks = divide_up(n, kNormBlock);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor sums({blocks}, DType::f64);
          run(ex, SquaredNorm{x, sums});
          return std::vector<TestTensor>{sums};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t b = 0; b < blocks; ++b) {
            double lanes[16] = {};
            for (int64_t i = b * kNormBlock; i < std::min(n, (b + 1) * kNormBlock); ++i)
              lanes[i % 16] += x.at(i) * x.at(i);
            for (int width = 8; width > 0; width /= 2)
              for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
            EXPECT_EQ(out[0].at(b), lanes[0]) << "block " << b;
          }
        });
  }
}

TYPED_TEST(SquaredNormOf, SeveralVectorsHasTheBitsOfEach) {
  using T = TypeParam;
  // More tensors than one launch takes, some of them empty.
  std::vector<int64_t> counts(70, 33);
  counts.insert(counts.begin() + 3, {kNormBlock, 1, 0, 2 * kNormBlock + 77, 5 * kNormBlock, 100});
  counts.push_back(kNormBlock + 1);
  Normal draw(73);
  std::vector<TestTensor> x;
  for (const int64_t n : counts) x.push_back(TestTensor({n}, DTypeOf<T>::value).fill(draw));
  on_every_device(
      [&](TestExec& ex) {
        std::vector<TestTensor> each, together;
        for (const int64_t n : counts)
          for (std::vector<TestTensor>* sums : {&each, &together})
            sums->push_back(TestTensor({divide_up(n, kNormBlock)}, DType::f64));
        std::vector<SquaredNorm> parts;
        for (size_t i = 0; i < x.size(); ++i) {
          parts.push_back({x[i], together[i]});
          run(ex, SquaredNorm{x[i], each[i]});
        }
        run(ex, SquaredNorms{parts});
        for (size_t i = 0; i < x.size(); ++i)
          for (int64_t b = 0; b < together[i].count(); ++b)
            EXPECT_EQ(together[i].at(b), each[i].at(b)) << counts[i] << " elements, block " << b;
        return together;
      },
      [&](const std::vector<TestTensor>& out) { EXPECT_GT(out.back().at(1), 0); });
}

TYPED_TEST(SquaredNormOf, ElementsIsNonFiniteWhereAnElementIs) {
  using T = TypeParam;
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    TestTensor x({2 * kNormBlock + 5}, DTypeOf<T>::value);
    x.fill([] { return 1.0; });
    x.set(kNormBlock + 17, bad);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor sums({3}, DType::f64);
          run(ex, SquaredNorm{x, sums});
          return std::vector<TestTensor>{sums};
        },
        [&](const std::vector<TestTensor>& out) {
          EXPECT_EQ(out[0].at(0), static_cast<double>(kNormBlock));
          EXPECT_FALSE(std::isfinite(out[0].at(1)));
          EXPECT_EQ(out[0].at(2), 5.0);
        });
  }
}

}  // namespace
}  // namespace trainer::ops::testing
