#include "ops/elementwise.h"

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

template <typename T>
struct Elementwise : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value, kSums = accumulator_of(kType);
};
TYPED_TEST_SUITE(Elementwise, ComputeTypes);

struct Case {
  int64_t rows, cols, gap;
};

TYPED_TEST(Elementwise, DropoutMaskIsTheDrawOfTheGlobalElement) {
  using T = TypeParam;
  for (const Case& c : {Case{1, 1, 0}, Case{5, 7, 0}, Case{3, 300, 2}, Case{37, 515, 0}, Case{2, 1024, 0}}) {
    for (const double p : {0.0, 0.1, 0.5}) {
      SCOPED_TRACE(format("[{}, {}] gap {} p {}", c.rows, c.cols, c.gap, p));
      const DropoutSite site{p, philox_key(7, "block.3.mlp"), 12, 1000003, 5, c.cols + 9};
      Normal draw(41);
      TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
      TestTensor residual = TestTensor({c.rows, c.cols}, this->kType).fill(draw);
      on_every_device(
          [&](TestExec& ex) {
            TestTensor y({c.rows, c.cols}, this->kType, c.gap), single = x, on_top = residual;
            run(ex, DropoutAdd{x, residual, y, site});
            run(ex, DropoutAdd{single, {}, single, site});
            run(ex, DropoutAdd{x, on_top, on_top, site});
            for (int64_t i = 0; i < y.count(); ++i) EXPECT_EQ(y.at(i), on_top.at(i));
            return std::vector<TestTensor>{y, single};
          },
          [&](const std::vector<TestTensor>& out) {
            for (int64_t r = 0; r < c.rows; ++r)
              for (int64_t i = 0; i < c.cols; ++i) {
                const auto index = static_cast<uint64_t>((site.first_row + r) * site.width + site.first_col + i);
                const bool keep = philox_at(site.key, index, site.step) >= dropout_threshold(p);
                const double want = keep ? x.at(r, i) / (1 - p) : 0.0;
                if (!keep) {
                  EXPECT_EQ(out[1].at(r, i), 0.0);
                }
                expect_close<T>(out[1].at(r, i), want, 2, std::abs(want), format("mask({})", index));
                expect_close<T>(out[0].at(r, i), residual.at(r, i) + want, 2, 1 + std::abs(want), "residual + mask");
              }
          });
    }
  }
}

TYPED_TEST(Elementwise, DropoutAddsTheBiasBeforeItDrops) {
  using T = TypeParam;
  for (const Case& c : {Case{5, 7, 0}, Case{3, 304, 8}}) {
    const DropoutSite site{0.25, philox_key(8, "bias"), 3, 17, 4, c.cols + 4};
    Normal draw(45);
    TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw),
               bias = TestTensor({c.cols}, this->kType).fill(draw);
    TestTensor residual = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({c.rows, c.cols}, this->kType, c.gap);
          run(ex, DropoutAdd{x, residual, y, site, bias});
          return std::vector<TestTensor>{y};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t r = 0; r < c.rows; ++r)
            for (int64_t i = 0; i < c.cols; ++i) {
              const auto index = static_cast<uint64_t>((site.first_row + r) * site.width + site.first_col + i);
              const double kept = philox_at(site.key, index, site.step) >= dropout_threshold(site.p) ? 1 / 0.75 : 0.0;
              const double want = residual.at(r, i) + (x.at(r, i) + bias.at(i)) * kept;
              const double scale = std::abs(x.at(r, i)) + std::abs(bias.at(i)) + std::abs(residual.at(r, i));
              expect_close<T>(out[0].at(r, i), want, 4, scale, format("y[{}, {}]", r, i));
            }
        });
  }
}

TYPED_TEST(Elementwise, DropoutMaskFollowsTheOrderOfRows) {
  for (const Case& c : {Case{37, 7, 0}, Case{40, 304, 8}, Case{3, 1024, 0}}) {
    DropoutSite site{0.5, philox_key(9, "order"), 4, 20, 4, c.cols + 4};
    Normal draw(46);
    TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw), order({c.rows}, DType::i32);
    // Two thirds of the rows of three interleaved parts, as a rank has them.
    order.fill([&, r = int64_t{0}]() mutable { return static_cast<double>(r++ * 2 % c.rows * 3 / 2); });
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({c.rows, c.cols}, this->kType, c.gap), stored = y;
          DropoutSite ordered = site;
          ordered.order = order;
          run(ex, DropoutAdd{x, {}, stored, ordered});
          for (int64_t r = 0; r < c.rows; ++r) {
            DropoutSite row = site;
            row.first_row += static_cast<int64_t>(order.at(r));
            run(ex, DropoutAdd{x.tensor().row_range(r, 1), {}, y.tensor().row_range(r, 1), row});
          }
          EXPECT_TRUE(stored.memory() == y.memory());
          return std::vector<TestTensor>{stored};
        },
        [&](const std::vector<TestTensor>& out) {
          int64_t kept = 0;
          for (int64_t i = 0; i < out[0].count(); ++i) kept += out[0].at(i) != 0;
          EXPECT_NEAR(static_cast<double>(kept), 0.5 * static_cast<double>(out[0].count()),
                      3 * std::sqrt(static_cast<double>(out[0].count())));
        });
  }
}

TEST(Dropout, ThresholdIsTheProbabilityIn32Bits) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
  EXPECT_EQ(dropout_threshold(1 - 0x1p-40), 0xffffffffu);
  EXPECT_THROW(dropout_threshold(1), Error);
}

TYPED_TEST(Elementwise, ScaleRoundsOnceInTheAccumulatorType) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  for (const int64_t cols : {1, 37, 256})
    for (const int64_t gap : {0, 3}) {
      Normal draw(8, 0, 1);
      const TestTensor x = TestTensor({5, cols}, this->kType, gap).fill(draw);
      on_every_device(
          [&](TestExec& ex) {
            TestTensor y = x;
            run(ex, Scale{y, 25.25});
            return std::vector<TestTensor>{y};
          },
          [&](const std::vector<TestTensor>& out) {
            for (int64_t i = 0; i < x.count(); ++i)
              EXPECT_EQ(out[0].at(i), static_cast<double>(T(static_cast<A>(x.at(i)) * A(25.25))));
          });
    }
}

TYPED_TEST(Elementwise, ColumnSumsMatchAndAccumulate) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  for (const Case& c : {Case{1, 1, 0}, Case{17, 33, 3}, Case{131, 1030, 0}, Case{2100, 5, 0}, Case{259, 776, 8}}) {
    SCOPED_TRACE(format("[{}, {}] gap {}", c.rows, c.cols, c.gap));
    Normal draw(42);
    TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
    const TestTensor before = TestTensor({c.cols}, this->kSums).fill(draw);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor sums({c.cols}, this->kSums), added = before;
          run(ex, ColumnSum{x, sums, false});
          run(ex, ColumnSum{x, added, true});
          return std::vector<TestTensor>{sums, added};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t i = 0; i < c.cols; ++i) {
            double want = 0, size = 0;
            for (int64_t r = 0; r < c.rows; ++r) {
              want += x.at(r, i);
              size += std::abs(x.at(r, i));
            }
            expect_close<A>(out[0].at(i), want, 8, size, format("sums[{}]", i));
            expect_close<A>(out[1].at(i), want + before.at(i), 8, size, format("added[{}]", i));
          }
        });
  }
}

TYPED_TEST(Elementwise, CastRoundsToNearestEven) {
  using T = TypeParam;
  const int64_t n = 20011;
  Normal draw(43, 0, 10);
  TestTensor x = TestTensor({n}, this->kType).fill(draw);
  x.set(0, std::numeric_limits<double>::infinity());
  x.set(1, std::numeric_limits<double>::quiet_NaN());
  x.set(2, -0.0);
  x.set(3, 1e-40);
  on_every_device(
      [&](TestExec& ex) {
        TestTensor wide({n}, on_cuda() ? DType::f32 : DType::f64), single({n}, DType::f32), half({n}, DType::bf16);
        run(ex, Cast{x, wide});
        run(ex, Cast{x, single});
        run(ex, Cast{x, half});
        return std::vector<TestTensor>{wide, single, half};
      },
      [&](const std::vector<TestTensor>& out) {
        const T* from = x.tensor().as<T>();
        for (int64_t i = 0; i < n; ++i) {
          const double value = static_cast<double>(from[i]);
          const bf16 half(static_cast<float>(value));
          EXPECT_EQ(out[2].tensor().as<bf16>()[i].bits, half.bits) << value;
          if (i == 1) continue;
          EXPECT_EQ(out[0].at(i), value);
          EXPECT_EQ(out[1].at(i), static_cast<double>(static_cast<float>(value)));
        }
        EXPECT_TRUE(std::isnan(out[0].at(1)) && std::isnan(out[1].at(1)));
        EXPECT_EQ(out[2].tensor().as<bf16>()[1].bits, 0x7fff);
      });
}

TYPED_TEST(Elementwise, CopyKeepsGaps) {
  Normal draw(44);
  TestTensor x = TestTensor({19, 1031}, this->kType, 4).fill(draw);
  on_every_device(
      [&](TestExec& ex) {
        TestTensor y({19, 1031}, this->kType, 1);
        run(ex, Copy{x, y});
        return std::vector<TestTensor>{y};
      },
      [&](const std::vector<TestTensor>& out) {
        for (int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(out[0].at(i), x.at(i));
      });
}

}  // namespace
}  // namespace trainer::ops::testing
