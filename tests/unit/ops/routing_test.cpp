#include "ops/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <numeric>

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

struct Shapes {
  int64_t rows, experts, per_row, lines;
};
constexpr Shapes kShapes[] = {{1, 1, 1, 1},   {1, 5, 5, 1},    {12, 5, 2, 2},  {37, 8, 3, 1},  {30, 7, 1, 5},
                              {3, 128, 8, 3}, {1, 1024, 3, 1}, {3, 40, 32, 1}, {700, 16, 4, 7}};
/// True on an emulated device, which would take minutes.
bool takes_long(const Shapes& s) { return on_cuda() && s.rows * s.experts * s.per_row > 5'000; }

/// The router of one case in double: choices, weights and lse of each row.
struct Routed {
  std::vector<int32_t> choices;
  std::vector<double> weights, lse;
};
template <typename F>  // double or std::complex<double>
F log_sum_exp(const std::vector<F>& x) {
  double top = -std::numeric_limits<double>::infinity();
  for (const F& each : x) top = std::max(top, std::real(each));
  F sum = 0;
  for (const F& each : x) sum += std::exp(each - top);
  return std::log(sum) + top;
}
template <typename F>
std::vector<F> weights_of(const std::vector<F>& logits, const int32_t* chosen, int64_t k, bool normalize) {
  std::vector<F> picked;
  for (int64_t j = 0; j < k; ++j) picked.push_back(logits[static_cast<size_t>(chosen[j])]);
  const F lse = log_sum_exp(normalize ? picked : logits);
  for (F& each : picked) each = std::exp(each - lse);
  return picked;
}
std::vector<double> row_of(const TestTensor& tensor, int64_t r) {
  std::vector<double> row;
  for (int64_t c = 0; c < tensor.tensor().cols(); ++c) row.push_back(tensor.at(r, c));
  return row;
}
std::vector<int32_t> largest(const std::vector<double>& logits, int64_t k) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
  order.resize(static_cast<size_t>(k));
  return order;
}

template <typename T>
struct Routing : DeviceTest {
  using A = AccumulatorOf<T>;
  static constexpr DType kType = DTypeOf<T>::value, kSums = DTypeOf<A>::value;
  struct Made {
    TestTensor choices, weights, lse, counts;
  };
  static Made route(TestExec& ex, TestTensor logits, int64_t k, Route op, int64_t lines = 1, TestTensor choices = {}) {
    const int64_t rows = logits.tensor().rows(), experts = logits.tensor().cols();
    if (choices.memory().empty()) choices = TestTensor({rows, k}, DType::i32);
    Made made{choices, TestTensor({rows, k}, kSums), TestTensor({rows}, kSums),
              TestTensor({lines, experts}, DType::i32)};
    op.logits = logits, op.choices = made.choices, op.weights = made.weights, op.lse = made.lse;
    op.counts = made.counts, op.rows_per_count = lines == 1 ? 0 : rows / lines;
    run(ex, op);
    return made;
  }
};
TYPED_TEST_SUITE(Routing, ComputeTypes);

// Logits are multiples of 1/2 in half of the cases, so that many are equal.
TYPED_TEST(Routing, ChoosesTheLargestLogitsAndWeighsThem) {
  using A = typename TestFixture::A;
  for (const Shapes& s : kShapes)
    for (const bool normalize : {false, true})
      for (const bool ties : {false, true}) {
        if (takes_long(s)) continue;
        SCOPED_TRACE(format("{} of {} experts, {} rows", s.per_row, s.experts, s.rows));
        Normal draw(31, 0, 2);
        TestTensor logits = TestTensor({s.rows, s.experts}, this->kSums).fill([&] {
          return ties ? std::round(2 * draw()) / 2 : draw();
        });
        on_every_device(
            [&](TestExec& ex) {
              auto made = this->route(ex, logits, s.per_row, {.normalize = normalize}, s.lines);
              return std::vector<TestTensor>{made.choices, made.weights, made.lse, made.counts};
            },
            [&](const std::vector<TestTensor>& out) {
              std::vector<int64_t> counts(static_cast<size_t>(s.lines * s.experts));
              for (int64_t r = 0; r < s.rows; ++r) {
                const std::vector<double> row = row_of(logits, r);
                const std::vector<int32_t> chosen = largest(row, s.per_row);
                const std::vector<double> weights = weights_of(row, chosen.data(), s.per_row, normalize);
                for (int64_t j = 0; j < s.per_row; ++j) {
                  const int32_t expert = chosen[static_cast<size_t>(j)];
                  ASSERT_EQ(out[0].at(r, j), expert);
                  expect_close<A>(out[1].at(r, j), weights[static_cast<size_t>(j)], 32, 1, "weight");
                  ++counts[static_cast<size_t>(r / (s.rows / s.lines) * s.experts + expert)];
                }
                expect_close<A>(out[2].at(r), log_sum_exp(row), 32, 4, "lse");
              }
              for (size_t i = 0; i < counts.size(); ++i)
                EXPECT_EQ(out[3].at(static_cast<int64_t>(i)), counts[i]) << "count " << i;
            });
      }
}

TYPED_TEST(Routing, ChoosesValidExpertsFromAnyLogits) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  struct Given {
    std::vector<double> logits;
    std::vector<int> chosen;
    bool finite;
  };
  const std::vector<Given> cases = {
      {{0.5, 0.5, 0.5, -1, 0.5}, {0, 1}, true}, {{-0.0, 0.0, -0.0, 0.0, 0.0}, {0, 1}, true},
      {{nan, -3, nan, -5, nan}, {1, 3}, false}, {{nan, nan, nan, nan, nan}, {0, 1}, false},
      {{-inf, -inf, 2, -inf, 1}, {2, 4}, true}, {{-inf, nan, -inf, nan, 7}, {4, 0}, false},
      {{1, inf, 3, inf, 2}, {1, 3}, false},     {{-inf, -inf, -inf, -inf, -inf}, {0, 1}, false}};
  TestTensor logits({std::ssize(cases), 5}, this->kSums);
  for (int64_t i = 0; i < logits.count(); ++i)
    logits.set(i, cases[static_cast<size_t>(i / 5)].logits[static_cast<size_t>(i % 5)]);
  for (const bool normalize : {false, true})
    on_every_device(
        [&](TestExec& ex) {
          auto made = this->route(ex, logits, 2, {.normalize = normalize});
          return std::vector<TestTensor>{made.choices, made.weights, made.lse};
        },
        [&](const std::vector<TestTensor>& out) {
          for (int64_t r = 0; r < std::ssize(cases); ++r) {
            const Given& given = cases[static_cast<size_t>(r)];
            for (int64_t j = 0; j < 2; ++j) {
              EXPECT_EQ(out[0].at(r, j), given.chosen[static_cast<size_t>(j)]) << "row " << r;
              EXPECT_TRUE(!given.finite || std::isfinite(out[1].at(r, j))) << "row " << r;
            }
            EXPECT_EQ(std::isfinite(out[2].at(r)), given.finite) << "row " << r;
          }
        });
}

TYPED_TEST(Routing, TakesGivenAndBalancedChoices) {
  using A = typename TestFixture::A;
  Normal draw(32);
  constexpr int64_t kRows = 21, kExperts = 6, kChosen = 4, kFirst = 5;
  TestTensor logits = TestTensor({kRows, kExperts}, this->kSums).fill(draw), given({kRows, kChosen}, DType::i32);
  for (int64_t i = 0; i < given.count(); ++i)
    given.set(i, static_cast<double>((i / kChosen * 5 + i % kChosen * 5) % 6));
  for (const auto from : {Route::From::given, Route::From::balanced})
    for (const bool normalize : {false, true})
      on_every_device(
          [&](TestExec& ex) {
            TestTensor choices = given;
            if (from == Route::From::balanced) choices.fill([] { return 99; });
            auto made = this->route(ex, logits, kChosen, {.from = from, .first_row = kFirst, .normalize = normalize}, 1,
                                    choices);
            return std::vector<TestTensor>{made.choices, made.weights, made.lse, made.counts};
          },
          [&](const std::vector<TestTensor>& out) {
            double counted = 0;
            for (int64_t r = 0; r < kRows; ++r) {
              std::vector<int32_t> chosen;
              for (int64_t j = 0; j < kChosen; ++j)
                chosen.push_back(static_cast<int32_t>(
                    from == Route::From::given ? given.at(r, j)
                                               : static_cast<double>(((kFirst + r) * kChosen + j) % kExperts)));
              const auto weights = weights_of(row_of(logits, r), chosen.data(), kChosen, normalize);
              for (int64_t j = 0; j < kChosen; ++j) {
                EXPECT_EQ(out[0].at(r, j), chosen[static_cast<size_t>(j)]);
                expect_close<A>(out[1].at(r, j), weights[static_cast<size_t>(j)], 32, 1, "weight");
              }
            }
            for (int64_t e = 0; e < kExperts; ++e) counted += out[3].at(e);
            EXPECT_EQ(counted, kRows * kChosen);
          });
}

// Two ranks have parts of three sequences of 5 rows; their counts add up to those of a rank with all rows.
TYPED_TEST(Routing, CountsAndBalancesSequencesThatRanksShare) {
  Normal draw(38);
  constexpr int64_t kRows = 15, kExperts = 6, kChosen = 2, kPer = 5;
  TestTensor logits = TestTensor({kRows, kExperts}, this->kSums).fill(draw);
  TestTensor dweights = TestTensor({kRows, kChosen}, this->kSums).fill(draw);
  on_every_device(
      [&](TestExec& ex) {
        std::vector<TestTensor> out;
        TestTensor counts({3, kExperts}, DType::i32), parts = counts.fill([] { return 0.0; }), all;
        for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, kRows}, {0, 7}, {7, 8}}) {
          TestTensor choices({n, kChosen}, DType::i32), weights({n, kChosen}, this->kSums), lse({n}, this->kSums);
          TestTensor dl({n, kExperts}, this->kType), terms({n, 3}, this->kSums);
          const Tensor x = logits.tensor().row_range(first, n), dw = dweights.tensor().row_range(first, n);
          run(ex, Route{.logits = x,
                        .choices = choices,
                        .weights = weights,
                        .lse = lse,
                        .counts = counts,
                        .first_row = first,
                        .rows_per_count = kPer});
          if (n == kRows) all = counts;
          for (int64_t i = 0; i < counts.count() && n < kRows; ++i) parts.set(i, parts.at(i) + counts.at(i));
          run(ex, RouteBackward{.dweights = dw,
                                .logits = x,
                                .lse = lse,
                                .choices = choices,
                                .weights = weights,
                                .counts = all,
                                .dl = dl,
                                .terms = terms,
                                .balance = 1,
                                .first_row = first,
                                .rows_per_count = kPer,
                                .counted_rows = kPer});
          out.push_back(dl), out.push_back(terms);
        }
        out.push_back(all), out.push_back(parts);
        return out;
      },
      [&](const std::vector<TestTensor>& out) {
        EXPECT_TRUE(out[6].memory() == out[7].memory());
        for (const int64_t which : {0, 1})
          for (int64_t i = 0; i < out[static_cast<size_t>(which)].count(); ++i) {
            const int64_t cut = 7 * out[static_cast<size_t>(which)].tensor().cols();
            const TestTensor& part = out[static_cast<size_t>(which + (i < cut ? 2 : 4))];
            ASSERT_EQ(out[static_cast<size_t>(which)].at(i), part.at(i < cut ? i : i - cut));
          }
      });
}

// Rows in any order, with their places among the sequences, count and are balanced as in their natural order.
TYPED_TEST(Routing, CountsRowsByTheirOrder) {
  Normal draw(39);
  constexpr int64_t kRows = 45, kExperts = 6, kChosen = 2, kPer = 9;
  TestTensor logits = TestTensor({kRows, kExperts}, this->kSums).fill(draw), stored_logits = logits;
  TestTensor dweights = TestTensor({kRows, kChosen}, this->kSums).fill(draw), stored_dweights = dweights;
  TestTensor order({kRows}, DType::i32);
  order.fill([r = 0]() mutable { return r++ * 7 % kRows; });
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = static_cast<int64_t>(order.at(r));
    for (int64_t e = 0; e < kExperts; ++e) stored_logits.set(r * kExperts + e, logits.at(row, e));
    for (int64_t j = 0; j < kChosen; ++j) stored_dweights.set(r * kChosen + j, dweights.at(row, j));
  }
  on_every_device(
      [&](TestExec& ex) {
        std::vector<TestTensor> out;
        for (const bool stored : {false, true}) {
          TestTensor choices({kRows, kChosen}, DType::i32), counts({kRows / kPer, kExperts}, DType::i32);
          TestTensor weights({kRows, kChosen}, this->kSums), lse({kRows}, this->kSums);
          TestTensor dl({kRows, kExperts}, this->kType), terms({kRows, 3}, this->kSums);
          const Tensor rows = stored ? Tensor(order) : Tensor();
          run(ex, Route{.logits = stored ? stored_logits : logits,
                        .choices = choices,
                        .weights = weights,
                        .lse = lse,
                        .counts = counts,
                        .rows_per_count = kPer,
                        .order = rows});
          run(ex, RouteBackward{.dweights = stored ? stored_dweights : dweights,
                                .logits = stored ? stored_logits : logits,
                                .lse = lse,
                                .choices = choices,
                                .weights = weights,
                                .counts = counts,
                                .dl = dl,
                                .terms = terms,
                                .balance = 1,
                                .rows_per_count = kPer,
                                .counted_rows = kPer,
                                .order = rows});
          out.push_back(counts), out.push_back(dl), out.push_back(terms);
        }
        return out;
      },
      [&](const std::vector<TestTensor>& out) {
        EXPECT_TRUE(out[0].memory() == out[3].memory());
        for (int64_t r = 0; r < kRows; ++r)
          for (const size_t result : {size_t{1}, size_t{2}})
            for (int64_t i = 0; i < out[result].tensor().cols(); ++i)
              ASSERT_EQ(out[result + 3].at(r, i), out[result].at(static_cast<int64_t>(order.at(r)), i)) << "row " << r;
      });
}

// The objective of a row is Σ dw·w + balance·Σ f·p + z/2·lse², whose derivatives follow from the complex step.
TYPED_TEST(Routing, BackwardMatchesTheComplexStep) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  using Complex = std::complex<double>;
  constexpr double kBalance = 0.7, kZ = 0.3, kStep = 1e-40;
  for (const Shapes& s : kShapes)
    for (const bool normalize : {false, true})
      for (const bool counted : {false, true}) {
        if (takes_long(s)) continue;
        SCOPED_TRACE(format("{} of {} experts, {} rows", s.per_row, s.experts, s.rows));
        Normal draw(33, 0, 1.5);
        TestTensor logits = TestTensor({s.rows, s.experts}, this->kSums).fill(draw);
        if (s.experts > 5) logits.set(3, -std::numeric_limits<double>::infinity());
        TestTensor dweights = TestTensor({s.rows, s.per_row}, this->kSums).fill(draw);
        const int64_t all = 2 * s.rows / s.lines;  // rows of two ranks
        on_every_device(
            [&](TestExec& ex) {
              auto routed = this->route(ex, logits, s.per_row, {.normalize = normalize}, s.lines);
              TestTensor dl({s.rows, s.experts}, this->kType), terms({s.rows, 3}, this->kSums);
              run(ex, RouteBackward{.dweights = dweights,
                                    .logits = logits,
                                    .lse = routed.lse,
                                    .choices = routed.choices,
                                    .weights = routed.weights,
                                    .counts = counted ? Tensor(routed.counts) : Tensor{},
                                    .dl = dl,
                                    .terms = terms,
                                    .balance = kBalance,
                                    .z = kZ,
                                    .rows_per_count = s.rows / s.lines,
                                    .counted_rows = all,
                                    .normalize = normalize});
              return std::vector<TestTensor>{dl, terms, routed.choices, routed.counts};
            },
            [&](const std::vector<TestTensor>& out) {
              for (int64_t r = 0; r < std::min<int64_t>(s.rows, 40); ++r) {
                std::vector<int32_t> chosen;
                for (int64_t j = 0; j < s.per_row; ++j) chosen.push_back(static_cast<int32_t>(out[2].at(r, j)));
                std::vector<double> f(static_cast<size_t>(s.experts));
                for (int64_t e = 0; e < s.experts && counted; ++e)
                  f[static_cast<size_t>(e)] =
                      out[3].at(r / (s.rows / s.lines), e) / static_cast<double>(s.per_row * all);
                const std::vector<double> row = row_of(logits, r);
                std::vector<Complex> x(row.begin(), row.end());
                const auto objective = [&] {
                  const Complex lse = log_sum_exp(x);
                  Complex sum = kZ / 2 * lse * lse;
                  for (size_t e = 0; e < x.size(); ++e) sum += kBalance * f[e] * std::exp(x[e] - lse);
                  const std::vector<Complex> w = weights_of(x, chosen.data(), s.per_row, normalize);
                  for (int64_t j = 0; j < s.per_row; ++j) sum += dweights.at(r, j) * w[static_cast<size_t>(j)];
                  return sum;
                };
                double scale = 2;
                for (int64_t j = 0; j < s.per_row; ++j) scale += std::abs(dweights.at(r, j));
                for (int64_t e = 0; e < std::min<int64_t>(s.experts, 40); ++e) {
                  if (!std::isfinite(row[static_cast<size_t>(e)])) {
                    EXPECT_EQ(out[0].at(r, e), 0);
                    continue;
                  }
                  x[static_cast<size_t>(e)] += Complex(0, kStep);
                  expect_close<T>(out[0].at(r, e), objective().imag() / kStep, 64, scale, "dl");
                  x[static_cast<size_t>(e)] -= Complex(0, kStep);
                }
                const double lse = log_sum_exp(row);
                double balance = 0, entropy = 0;
                for (size_t e = 0; e < row.size(); ++e) {
                  const double p = std::exp(row[e] - lse);
                  balance += static_cast<double>(s.experts) * f[e] * p;
                  if (p > 0) entropy -= p * std::log(p);
                }
                expect_close<A>(out[1].at(r, 0), balance, 64, 4, "balance");
                expect_close<A>(out[1].at(r, 1), lse * lse, 64, 50, "lse²");
                expect_close<A>(out[1].at(r, 2), entropy, 64, 8, "entropy");
              }
            });
      }
}

TYPED_TEST(Routing, NanLogitsReachTheGradientAndTheTerms) {
  TestTensor logits = TestTensor({2, 4}, this->kSums).fill([] { return 1.0; }),
             dweights = TestTensor({2, 2}, this->kSums);
  dweights.fill([] { return 1.0; });
  logits.set(2, std::nan(""));
  on_every_device(
      [&](TestExec& ex) {
        auto routed = this->route(ex, logits, 2, {.normalize = true});
        TestTensor dl({2, 4}, this->kType), terms({2, 3}, this->kSums);
        run(ex, RouteBackward{.dweights = dweights,
                              .logits = logits,
                              .lse = routed.lse,
                              .choices = routed.choices,
                              .weights = routed.weights,
                              .counts = {},
                              .dl = dl,
                              .terms = terms,
                              .balance = 1,
                              .normalize = true});
        return std::vector<TestTensor>{dl, terms};
      },
      [&](const std::vector<TestTensor>& out) {
        EXPECT_TRUE(std::isnan(out[0].at(0, 0)) && std::isnan(out[1].at(0, 1)));
        EXPECT_TRUE(std::isfinite(out[0].at(1, 0)) && std::isfinite(out[1].at(1, 2)));
      });
}

/// The sinusoids of the golden values.
double wave(int64_t k, int64_t i, int64_t j) {
  return std::sin(static_cast<double>(1 + 37 * i + 11 * j + 3 * i * j + 101 * k));
}

// Golden values: see tests/unit/model for the whole layer.
TYPED_TEST(Routing, MatchesTheGoldenLayer) {
  using A = typename TestFixture::A;
  constexpr double kOffsets[] = {0.9, 0.1, 0.3, -6.0, -0.3};
  TestTensor logits({12, 5}, this->kSums);
  for (int64_t r = 0; r < 12; ++r)
    for (int64_t e = 0; e < 5; ++e) {
      double sum = kOffsets[e];
      for (int64_t h = 1; h < 8; ++h) sum += wave(0, r, h) * 0.6 * wave(1, h, e);
      logits.set(r * 5 + e, sum);
    }
  TestTensor dweights = TestTensor({12, 2}, this->kSums).fill([] { return 0.0; });
  on_every_device(
      [&](TestExec& ex) {
        auto routed = this->route(ex, logits, 2, {.normalize = true});
        TestTensor dl({12, 5}, this->kType), terms({12, 3}, this->kSums);
        run(ex, RouteBackward{.dweights = dweights,
                              .logits = logits,
                              .lse = routed.lse,
                              .choices = routed.choices,
                              .weights = routed.weights,
                              .counts = routed.counts,
                              .dl = dl,
                              .terms = terms,
                              .counted_rows = 12,
                              .normalize = true});
        return std::vector<TestTensor>{routed.choices, routed.weights, routed.counts, terms};
      },
      [&](const std::vector<TestTensor>& out) {
        const int choices[] = {20, 40, 2, 2, 2, 42, 10, 1, 2, 21, 10, 2};
        for (int64_t r = 0; r < 12; ++r) EXPECT_EQ(10 * out[0].at(r, 0) + out[0].at(r, 1), choices[r]) << "row " << r;
        expect_close<A>(out[1].at(0, 0), 0.6606968243802219, 32, 1, "weight");
        expect_close<A>(out[1].at(0, 1), 0.3393031756197781, 32, 1, "weight");
        const int counts[] = {10, 4, 8, 0, 2};
        for (int64_t e = 0; e < 5; ++e) EXPECT_EQ(out[2].at(e), counts[e]);
        double means[3] = {};
        for (int64_t i = 0; i < 36; ++i) means[i % 3] += out[3].at(i) / 12;
        expect_close<A>(means[0], 1.481884209097464, 64, 4, "balance");
        expect_close<A>(means[1], 3.928073549438197, 64, 8, "lse²");
        expect_close<A>(means[2], 1.132074090485416, 64, 4, "entropy");
      });
}

struct RowOrder : DeviceTest {};

TEST_F(RowOrder, SortsByExpertAndKeepsTheOrderOfRows) {
  std::mt19937 random(34);
  for (const Shapes& s : kShapes) {
    TestTensor choices = TestTensor({s.rows, s.per_row}, DType::i32).fill([&] { return random() % size_t(s.experts); });
    on_every_device(
        [&](TestExec& ex) {
          TestTensor order({choices.count()}, DType::i32), place({choices.count()}, DType::i32);
          run(ex, SortRows{choices, order, place, s.experts});
          return std::vector<TestTensor>{order, place};
        },
        [&](const std::vector<TestTensor>& out) {
          std::vector<int64_t> order(static_cast<size_t>(choices.count()));
          std::iota(order.begin(), order.end(), 0);
          std::ranges::stable_sort(order, {}, [&](int64_t i) { return choices.at(i); });
          for (int64_t i = 0; i < choices.count(); ++i) {
            ASSERT_EQ(out[0].at(i), order[static_cast<size_t>(i)]);
            ASSERT_EQ(out[1].at(order[static_cast<size_t>(i)]), i);
          }
        });
  }
}

TEST_F(RowOrder, RejectsExpertsThatDoNotExist) {
  SKIP_ON_CUDA("a GPU does not check choices");
  Machine machine(1);
  TestTensor choices({2, 1}, DType::i32), order({2}, DType::i32), place({2}, DType::i32);
  choices.set(0, 0), choices.set(1, 3);
  EXPECT_THROW(run(machine.ex, SortRows{choices, order, place, 3}), Error);
}

TEST_F(RowOrder, GathersRowsOfAnyType) {
  std::mt19937 random(35);
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::i32})
    for (const int64_t width : {1, 3, 64, 301})
      for (const int64_t gap : {0, 5}) {
        if (on_cuda() && type == DType::f64) continue;
        constexpr int64_t kRows = 40, kEach = 3, kTaken = 150;
        TestTensor x = TestTensor({kRows, width}, type, gap).fill([&] { return double(random() % 100); });
        TestTensor index = TestTensor({kTaken}, DType::i32).fill([&] { return double(random() % (kRows * kEach)); });
        index.set(7, -1);
        on_every_device(
            [&](TestExec& ex) {
              TestTensor y({kTaken, width}, type, gap);
              run(ex, GatherRows{x, index, y, kEach});
              return std::vector<TestTensor>{y};
            },
            [&](const std::vector<TestTensor>& out) {
              for (int64_t i = 0; i < kTaken; ++i)
                for (int64_t c = 0; c < width; ++c)
                  ASSERT_EQ(out[0].at(i, c), i == 7 ? 0 : x.at(static_cast<int64_t>(index.at(i)) / kEach, c));
            });
      }
}

TYPED_TEST(Routing, CombinesRowsInTheOrderOfTheChoices) {
  using T = TypeParam;
  using A = AccumulatorOf<T>;
  std::mt19937 random(36);
  Normal draw(37);
  for (const int64_t k : {1, 2, 8, 32})
    for (const int64_t gap : {0, 5})
      for (const int mode : {0, 1, 2, 3}) {  // without residual, with one, with one in place, all in the accumulator
        constexpr int64_t kRows = 23, kCols = 77, kFrom = 50;
        TestTensor from = TestTensor({kFrom, kCols}, this->kType, gap).fill(draw);
        const DType type = mode == 3 ? this->kSums : this->kType;
        TestTensor residual = TestTensor({kRows, kCols}, type, gap).fill(draw);
        TestTensor place = TestTensor({kRows * k}, DType::i32).fill([&] { return double(random() % (kFrom + 5)) - 5; });
        for (int64_t j = 0; j < k; ++j) place.set(3 * k + j, -1);  // a row of nothing
        on_every_device(
            [&](TestExec& ex) {
              TestTensor y = mode >= 2 ? residual : TestTensor({kRows, kCols}, type, gap);
              run(ex, CombineRows{from, place, y, mode == 0 ? Tensor{} : mode == 1 ? Tensor(residual) : Tensor(y)});
              return std::vector<TestTensor>{y};
            },
            [&](const std::vector<TestTensor>& out) {
              for (int64_t r = 0; r < kRows; ++r)
                for (int64_t c = 0; c < kCols; ++c) {
                  A sum = 0;
                  for (int64_t j = 0; j < k; ++j)
                    if (place.at(r * k + j) >= 0)
                      sum += static_cast<A>(from.at(static_cast<int64_t>(place.at(r * k + j)), c));
                  if (mode > 0) sum += static_cast<A>(residual.at(r, c));
                  const auto rounded = mode == 3 ? static_cast<double>(sum) : static_cast<double>(T(sum));
                  ASSERT_EQ(out[0].at(r, c), rounded);  // added in this order, rounded once
                }
            });
      }
}

}  // namespace
}  // namespace trainer::ops::testing
