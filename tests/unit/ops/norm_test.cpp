#include "ops/norm.h"

#include <complex>

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

struct Case {
  int64_t rows, cols, gap;
  bool center, bias;
};
std::vector<Case> cases() {
  return {{1, 1, 0, false, false}, {3, 7, 5, true, true},    {5, 64, 0, true, false},
          {37, 33, 3, true, true}, {40, 48, 0, false, true}, {131, 19, 1, false, false}};
}

template <typename V>
std::vector<V> reference_row(const std::vector<V>& x, const std::vector<V>& gain, const std::vector<V>& bias,
                             double eps, bool center) {
  using std::sqrt;
  const double n = static_cast<double>(x.size());
  V mean = 0, squares = 0;
  if (center)
    for (const V& v : x) mean += v / n;
  for (const V& v : x) squares += (v - mean) * (v - mean) / n;
  const V rstd = 1.0 / sqrt(squares + eps);
  std::vector<V> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) * rstd * gain[i] + (bias.empty() ? V(0) : bias[i]);
  return y;
}

template <typename V>
std::vector<V> row_of(const TestTensor& grid, int64_t r) {
  std::vector<V> row(static_cast<size_t>(grid.tensor().cols()));
  for (size_t i = 0; i < row.size(); ++i) row[i] = grid.at(r, static_cast<int64_t>(i));
  return row;
}

template <typename T>
struct Norm : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value, kSums = accumulator_of(kType);
};
TYPED_TEST_SUITE(Norm, ComputeTypes);

TYPED_TEST(Norm, ForwardMatchesTheFormulaAndApplyRepeatsItsBits) {
  using T = TypeParam;
  for (const Case& c : cases()) {
    SCOPED_TRACE(format("[{}, {}] gap {} center {} bias {}", c.rows, c.cols, c.gap, c.center, c.bias));
    Normal draw(11, 0.5, 2);
    TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw),
               gain = TestTensor({c.cols}, this->kType).fill(draw);
    TestTensor bias = c.bias ? TestTensor({c.cols}, this->kType).fill(draw) : TestTensor();
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({c.rows, c.cols}, this->kType, c.gap), again({c.rows, c.cols}, this->kType, c.gap);
          TestTensor mean = c.center ? TestTensor({c.rows}, this->kSums) : TestTensor(), rstd({c.rows}, this->kSums);
          run(ex, NormForward{x, gain, bias, y, mean, rstd, 1e-5, c.center});
          run(ex, NormApply{x, gain, bias, mean, rstd, again, c.center});
          EXPECT_TRUE(y.memory() == again.memory());
          run(ex, NormForward{x, gain, bias, again, {}, {}, 1e-5, c.center});
          EXPECT_TRUE(y.memory() == again.memory());
          return std::vector<TestTensor>{y, rstd};
        },
        [&](const std::vector<TestTensor>& out) {
          const auto g = row_of<double>(gain, 0), b = c.bias ? row_of<double>(bias, 0) : std::vector<double>();
          for (int64_t r = 0; r < c.rows; ++r) {
            const auto want = reference_row<double>(row_of<double>(x, r), g, b, 1e-5, c.center);
            for (int64_t i = 0; i < c.cols; ++i)
              expect_close<T>(out[0].at(r, i), want[i], 32, 4 + std::abs(want[i]), format("y[{}, {}]", r, i));
          }
        });
  }
}

TYPED_TEST(Norm, BackwardMatchesTheComplexStep) {
  using T = TypeParam;
  using Complex = std::complex<double>;
  for (const Case& c : cases()) {
    if (c.cols == 1)
      continue;  // only eps keeps the gradient of one column finite: 1e5 times the scale of other gradients
    SCOPED_TRACE(format("[{}, {}] gap {} center {} bias {}", c.rows, c.cols, c.gap, c.center, c.bias));
    Normal draw(12);
    TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw),
               gain = TestTensor({c.cols}, this->kType).fill(draw);
    TestTensor bias = c.bias ? TestTensor({c.cols}, this->kType).fill(draw) : TestTensor();
    TestTensor dy = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
    TestTensor residual = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
    const TestTensor sums_before = TestTensor({c.cols}, this->kSums).fill(draw);

    // One derivative per column: that of Σ_i dy[r, i]·y_i with respect to x[r, j], gain[j] or bias[j].
    std::vector<double> dx(static_cast<size_t>(c.rows * c.cols)), dgain(static_cast<size_t>(c.cols)), dbias(dgain);
    const double h = 1e-40;
    for (int64_t r = 0; r < c.rows; ++r) {
      auto slope = [&](int64_t j, int which) {
        std::vector<Complex> rows[3] = {row_of<Complex>(x, r), row_of<Complex>(gain, 0), row_of<Complex>(gain, 0)};
        rows[which][static_cast<size_t>(j)] += Complex(0, h);
        const auto y = reference_row<Complex>(rows[0], rows[1], rows[2], 1e-5, c.center);
        double sum = 0;
        for (int64_t i = 0; i < c.cols; ++i) sum += dy.at(r, i) * y[static_cast<size_t>(i)].imag() / h;
        return sum;
      };
      for (int64_t j = 0; j < c.cols; ++j) {
        dx[static_cast<size_t>(r * c.cols + j)] = slope(j, 0);
        dgain[static_cast<size_t>(j)] += slope(j, 1);
        dbias[static_cast<size_t>(j)] += slope(j, 2);
      }
    }
    for (const bool accumulate : {false, true}) {
      on_every_device(
          [&](TestExec& ex) {
            TestTensor mean = c.center ? TestTensor({c.rows}, this->kSums) : TestTensor(), rstd({c.rows}, this->kSums);
            TestTensor y({c.rows, c.cols}, this->kType), dg = sums_before, db = c.bias ? sums_before : TestTensor();
            run(ex, NormForward{x, gain, bias, y, mean, rstd, 1e-5, c.center});
            TestTensor out = dy;  // dx may be dy, and may be the residual
            run(ex, NormBackward{out, x, gain, mean, rstd, {}, out, dg, db, c.center, accumulate, accumulate});
            TestTensor with = residual, unused = sums_before;
            run(ex, NormBackward{dy, x, gain, mean, rstd, with, with, unused, {}, c.center, false, false});
            return std::vector<TestTensor>{out, with, dg, db};
          },
          [&](const std::vector<TestTensor>& out) {
            const double before = accumulate ? 1 : 0;
            for (int64_t i = 0; i < c.rows * c.cols; ++i) {
              expect_close<T>(out[0].at(i), dx[i], 64, 10, format("dx[{}]", i));
              expect_close<T>(out[1].at(i), residual.at(i) + dx[i], 64, 10, format("residual + dx[{}]", i));
            }
            for (int64_t i = 0; i < c.cols; ++i) {
              const double scale = static_cast<double>(c.rows);
              expect_close<AccumulatorOf<T>>(out[2].at(i), dgain[i] + before * sums_before.at(i), 32, scale,
                                             format("dgain[{}]", i));
              if (c.bias)
                expect_close<AccumulatorOf<T>>(out[3].at(i), dbias[i] + before * sums_before.at(i), 32, scale,
                                               format("dbias[{}]", i));
            }
          });
    }
  }
}

// Long rows by the closed form of the gradient, which the complex step has confirmed for short ones in fp64.
TYPED_TEST(Norm, LongRowsMatchTheClosedForm) {
  using T = TypeParam;
  for (const Case& c : {Case{35, 256, 0, true, true}, Case{35, 768, 0, true, true}, Case{37, 1600, 8, true, true},
                        Case{3, 1030, 0, false, true}, Case{34, 2048, 8, true, true}, Case{3, 4104, 8, true, true},
                        Case{2, 8200, 0, false, true}, Case{3, 8203, 0, true, true}, Case{2, 17000, 0, true, false},
                        Case{2, 22000, 0, true, true}}) {
    SCOPED_TRACE(format("[{}, {}] gap {} center {} bias {}", c.rows, c.cols, c.gap, c.center, c.bias));
    Normal draw(13, 0.25, 1);
    TestTensor x = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw),
               gain = TestTensor({c.cols}, this->kType).fill(draw);
    TestTensor bias = c.bias ? TestTensor({c.cols}, this->kType).fill(draw) : TestTensor();
    TestTensor dy = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
    TestTensor residual = TestTensor({c.rows, c.cols}, this->kType, c.gap).fill(draw);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor mean = c.center ? TestTensor({c.rows}, this->kSums) : TestTensor(), rstd({c.rows}, this->kSums);
          TestTensor y({c.rows, c.cols}, this->kType, c.gap), again = y, dx = residual, dg({c.cols}, this->kSums);
          TestTensor db = c.bias ? TestTensor({c.cols}, this->kSums) : TestTensor();
          run(ex, NormForward{x, gain, bias, y, mean, rstd, 1e-5, c.center});
          run(ex, NormApply{x, gain, bias, mean, rstd, again, c.center});
          EXPECT_TRUE(y.memory() == again.memory());
          run(ex, NormBackward{dy, x, gain, mean, rstd, dx, dx, dg, db, c.center, false, false});
          return std::vector<TestTensor>{y, dx, dg, db};
        },
        [&](const std::vector<TestTensor>& out) {
          const double n = static_cast<double>(c.cols);
          std::vector<long double> dgain(static_cast<size_t>(c.cols)), dbias(dgain);  // sums of many rounded terms
          const auto g = row_of<double>(gain, 0), b = c.bias ? row_of<double>(bias, 0) : std::vector<double>();
          double worst = 0, worst_dx = 0;
          for (int64_t r = 0; r < c.rows; ++r) {
            const auto want = reference_row<double>(row_of<double>(x, r), g, b, 1e-5, c.center);
            long double mean = 0, squares = 0, sum = 0, product = 0;
            for (int64_t i = 0; i < c.cols && c.center; ++i) mean += x.at(r, i) / n;
            for (int64_t i = 0; i < c.cols; ++i) squares += (x.at(r, i) - mean) * (x.at(r, i) - mean) / n;
            const long double rstd = 1 / std::sqrt(squares + 1e-5L);
            for (int64_t i = 0; i < c.cols; ++i) {
              const long double hat = (x.at(r, i) - mean) * rstd, gradient = dy.at(r, i) * g[i];
              sum += gradient / n;
              product += gradient * hat / n;
              dgain[i] += dy.at(r, i) * hat;
              dbias[i] += dy.at(r, i);
            }
            for (int64_t i = 0; i < c.cols; ++i) {
              const long double hat = (x.at(r, i) - mean) * rstd;
              const auto dx = static_cast<double>(residual.at(r, i) +
                                                  rstd * (dy.at(r, i) * g[i] - (c.center ? sum : 0) - hat * product));
              const double size = 32 * kEps<AccumulatorOf<T>>, rounding = kEps<T>;
              worst = std::max(worst, std::abs(out[0].at(r, i) - want[i]) /
                                          (size * (4 + std::abs(want[i])) + rounding * std::abs(want[i])));
              worst_dx = std::max(worst_dx, std::abs(out[1].at(r, i) - dx) / (size * 10 + rounding * std::abs(dx)));
            }
          }
          EXPECT_LE(worst, 1) << "y, in units of its bound";
          EXPECT_LE(worst_dx, 1) << "dx, in units of its bound";
          for (int64_t i = 0; i < c.cols; ++i) {
            const double scale = static_cast<double>(c.rows);
            expect_close<AccumulatorOf<T>>(out[2].at(i), static_cast<double>(dgain[i]), 32, scale,
                                           format("dgain[{}]", i));
            if (c.bias)
              expect_close<AccumulatorOf<T>>(out[3].at(i), static_cast<double>(dbias[i]), 32, scale,
                                             format("dbias[{}]", i));
          }
        });
  }
}

// Each group is normed like a row, with the same bits if rows are not split into blocks; gradients of gain and bias are
// summed over all groups.
TYPED_TEST(Norm, GroupsOfARowAreNormedLikeRows) {
  struct Heads {
    int64_t rows, groups, cols, gap;
  };
  for (const Heads& h : {Heads{5, 3, 8, 8}, Heads{37, 4, 64, 0}, Heads{40, 2, 6, 5}, Heads{130, 1, 16, 0},
                         Heads{3, 2, 1040, 8}, Heads{2, 2, 8208, 0}, Heads{21, 3, 7, 0}}) {
    SCOPED_TRACE(format("[{}, {} x {}] gap {}", h.rows, h.groups, h.cols, h.gap));
    Normal draw(14);
    const int64_t width = h.groups * h.cols, all = h.rows * h.groups;
    TestTensor x = TestTensor({h.rows, width}, this->kType, h.gap).fill(draw),
               dy = TestTensor({h.rows, width}, this->kType, h.gap).fill(draw);
    TestTensor residual = TestTensor({h.rows, width}, this->kType, h.gap).fill(draw),
               gain = TestTensor({h.cols}, this->kType).fill(draw);
    const TestTensor before = TestTensor({h.cols}, this->kSums).fill(draw);
    const auto as_rows = [&](const TestTensor& grid) {
      TestTensor rows({all, h.cols}, this->kType);
      for (int64_t r = 0; r < all; ++r)
        for (int64_t i = 0; i < h.cols; ++i) rows.set(r * h.cols + i, grid.at(r / h.groups, r % h.groups * h.cols + i));
      return rows;
    };
    TestTensor x_rows = as_rows(x), dy_rows = as_rows(dy), residual_rows = as_rows(residual);
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({h.rows, width}, this->kType, h.gap), again = y, rstd({all}, this->kSums), dx = dy, dg = before;
          run(ex, NormForward{x, gain, {}, y, {}, rstd, 1e-6, false, h.groups});
          run(ex, NormApply{x, gain, {}, {}, rstd, again, false, h.groups});
          EXPECT_TRUE(y.memory() == again.memory());
          run(ex, NormBackward{dx, x, gain, {}, rstd, residual, dx, dg, {}, false, true, false, h.groups});
          TestTensor y_rows({all, h.cols}, this->kType), rstd_rows({all}, this->kSums), dx_rows = dy_rows,
                                                                                        dg_rows = before;
          run(ex, NormForward{x_rows, gain, {}, y_rows, {}, rstd_rows, 1e-6, false});
          run(ex, NormBackward{
                      dx_rows, x_rows, gain, {}, rstd_rows, residual_rows, dx_rows, dg_rows, {}, false, true, false});
          EXPECT_TRUE(rstd.memory() == rstd_rows.memory());
          EXPECT_TRUE(as_rows(y).memory() == y_rows.memory());
          EXPECT_TRUE(as_rows(dx).memory() == dx_rows.memory());
          return std::vector<TestTensor>{dg, dg_rows};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t i = 0; i < h.cols; ++i)
            expect_close<AccumulatorOf<TypeParam>>(out[0].at(i), out[1].at(i), 64, static_cast<double>(all),
                                                   format("dgain[{}]", i));
        });
  }
}

// Adding 1 to a stored gain rounds it as the kernel does, in fp32 and fp64. A bf16 gain would lose bits.
TYPED_TEST(Norm, AnOffsetIsAddedToTheGainInTheAccumulatorType) {
  using T = TypeParam;
  const int64_t rows = 21;
  for (const int64_t cols : {5, 48}) {
    Normal draw(15, 0, 0.5);
    TestTensor x = TestTensor({rows, cols}, this->kType).fill(draw),
               dy = TestTensor({rows, cols}, this->kType).fill(draw),
               stored = TestTensor({cols}, this->kType).fill(draw), whole({cols}, this->kType);
    for (int64_t i = 0; i < cols; ++i)
      whole.set(i, static_cast<double>(static_cast<AccumulatorOf<T>>(stored.at(i)) + AccumulatorOf<T>(1)));
    on_every_device(
        [&](TestExec& ex) {
          TestTensor y({rows, cols}, this->kType), again = y, expected = y, dx = y, expected_dx = y;
          TestTensor rstd({rows}, this->kSums), dgain({cols}, this->kSums), expected_dgain = dgain;
          run(ex, NormForward{x, stored, {}, y, {}, rstd, 1e-6, false, 1, 1});
          run(ex, NormApply{x, stored, {}, {}, rstd, again, false, 1, 1});
          run(ex, NormBackward{dy, x, stored, {}, rstd, {}, dx, dgain, {}, false, false, false, 1, 1});
          EXPECT_TRUE(y.memory() == again.memory());
          if constexpr (!std::is_same_v<T, bf16>) {
            run(ex, NormForward{x, whole, {}, expected, {}, rstd, 1e-6, false});
            run(ex, NormBackward{dy, x, whole, {}, rstd, {}, expected_dx, expected_dgain, {}, false});
            EXPECT_TRUE(y.memory() == expected.memory());
            EXPECT_TRUE(dx.memory() == expected_dx.memory());
            EXPECT_TRUE(dgain.memory() == expected_dgain.memory());
          }
          return std::vector<TestTensor>{y};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t r = 0; r < rows; ++r) {
            std::vector<double> gain(static_cast<size_t>(cols));
            for (int64_t i = 0; i < cols; ++i) gain[static_cast<size_t>(i)] = 1 + stored.at(i);
            const std::vector<double> want = reference_row<double>(row_of<double>(x, r), gain, {}, 1e-6, false);
            for (int64_t i = 0; i < cols; ++i)
              expect_close<T>(out[0].at(r, i), want[static_cast<size_t>(i)], 16,
                              1 + std::abs(want[static_cast<size_t>(i)]), "y");
          }
        });
  }
}

TYPED_TEST(Norm, NoOffsetKeepsTheSignOfAGainOfZero) {
  on_every_device(
      [&](TestExec& ex) {
        TestTensor x({1, 2}, this->kType), gain({2}, this->kType), y = x;
        x.set(0, 1), x.set(1, 1), gain.set(0, -0.0), gain.set(1, 0.0);
        run(ex, NormForward{x, gain, {}, y, {}, {}, 1e-6, false});
        EXPECT_TRUE(std::signbit(y.at(0)));
        EXPECT_FALSE(std::signbit(y.at(1)));
        return std::vector<TestTensor>{y};
      },
      [](const std::vector<TestTensor>&) {});
}

// Values of an independent program: x = sin φ, w = 0.25 sin φ, dy = sin φ, φ = 1 + 37i + 11j + 3ij + 101k.
TEST(NormOffset, HasTheValuesOfTheReference) {
  device::CpuDevice device(1);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  const auto wave = [](int64_t i, int64_t j, int64_t k) {
    return std::sin(static_cast<double>(1 + 37 * i + 11 * j + 3 * i * j + 101 * k));
  };
  TestTensor x({2, 6}, DType::f64), dy = x, y = x, dx = x, w({6}, DType::f64), dw = w, rstd({2}, DType::f64);
  for (int64_t j = 0; j < 6; ++j) {
    w.set(j, 0.25 * wave(j, 0, 1));
    for (int64_t i = 0; i < 2; ++i) x.set(i * 6 + j, wave(i, j, 0)), dy.set(i * 6 + j, wave(i, j, 2));
  }
  run(ex, NormForward{x, w, {}, y, {}, rstd, 1e-6, false, 1, 1});
  run(ex, NormBackward{dy, x, w, {}, rstd, {}, dx, dw, {}, false, false, false, 1, 1});
  EXPECT_NEAR(y.at(0), 1.488951603165783, 1e-13);
  EXPECT_NEAR(dx.at(0), 9.216077471863651e-01, 1e-13);
  EXPECT_NEAR(dw.at(0), 1.511204501577900, 1e-13);
}

TEST(NormChecks, NameTheOperandThatDoesNotFit) {
  device::DryDevice device(1, Isa::plain);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  TestTensor x({4, 8}, DType::f32), gain({7}, DType::f32), y({4, 8}, DType::f32);
  try {
    run(ex, NormForward{x, gain, {}, y, {}, {}, 1e-5, false});
    FAIL() << "a gain of 7 for 8 columns was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("norm gain"), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), Code::internal);
  }
}

TEST(NormChecks, DryDeviceOnlyMeters) {
  device::DryDevice device(1, Isa::plain);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  const Tensor x{nullptr, {64, 32}, DType::f32, 0}, row{nullptr, {32}, DType::f32, 0},
      column{nullptr, {64}, DType::f32, 0};
  run(ex, NormForward{x, row, row, x, column, column, 1e-5, true});
  run(ex, NormBackward{x, x, row, column, column, x, x, row, row, true, false, false});
  EXPECT_EQ(meter.of(OpKind::norm).calls, 2);
  EXPECT_EQ(meter.of(OpKind::norm).bytes, 6.0 * 64 * 32 * 4);
}

}  // namespace
}  // namespace trainer::ops::testing
