#include "ops/grouped_gemm.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/cpu/grouped_gemm.h"
#include "unit/ops/gemm_panels.h"
#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

using Rows = std::vector<int64_t>;
const std::vector<Rows> kRows = {{0, 1, 31, 32, 33}, {40}, {0, 0, 9, 0}, {8, 7, 560, 1, 2}, {0, 0}, {1, 1, 2}};
int64_t sum_of(const Rows& rows) { return std::reduce(rows.begin(), rows.end()); }

/// A way to multiply bf16 panels or vectors, on this CPU.
struct Way {
  Isa isa;
  const GemmTable* table;
};
std::vector<Way> ways() {
  std::vector<Way> all;
  for (const Isa isa : instruction_sets()) all.push_back({isa, &gemm_table(isa)});
  for (const auto& panels : gemm_test::panels()) all.push_back({panels.isa, panels.table});
  return all;
}

template <typename T>
struct GroupedGemms : DeviceTest {
  static constexpr DType kType = DTypeOf<T>::value, kSums = DTypeOf<AccumulatorOf<T>>::value;
};
TYPED_TEST_SUITE(GroupedGemms, ComputeTypes);

// Two rows more than the groups use must stay as they are.
TYPED_TEST(GroupedGemms, MatchDoublePrecision) {
  using T = TypeParam;
  for (const Rows& rows : kRows)
    for (const bool trans_b : {false, true}) {
      SCOPED_TRACE(format("{} groups, {} rows, trans_b {}", rows.size(), sum_of(rows), trans_b));
      constexpr int64_t kK = 270, kN = 75;
      const int64_t groups = std::ssize(rows), all = sum_of(rows) + 2;
      Normal draw(41);
      TestTensor a = TestTensor({all, kK}, this->kType, 3).fill(draw);
      TestTensor b = TestTensor(trans_b ? Shape{groups * kN, kK} : Shape{groups * kK, kN}, this->kType).fill(draw);
      TestTensor x = TestTensor({all, kK}, this->kType).fill(draw),
                 dy = TestTensor({all, kN}, this->kType, 2).fill(draw);
      on_every_device(
          [&](TestExec& ex) {
            TestTensor c = TestTensor({all, kN}, this->kType, 1).fill([] { return -7.0; });
            run(ex, GroupedGemm{a, b, c, rows, trans_b});
            TestTensor dw = TestTensor({groups * kK, kN}, this->kSums, 4).fill([] { return std::nan(""); });
            run(ex, GroupedWeightGradient{x, dy, dw, rows});
            TestTensor sum = TestTensor({groups * kK, kN}, this->kSums).fill([] { return 2.0; });
            run(ex, GroupedWeightGradient{x, dy, sum, rows, true});
            return std::vector<TestTensor>{c, dw, sum};
          },
          [&](const std::vector<TestTensor>& out) {
            int64_t first = 0;
            for (int64_t g = 0; g < groups; ++g) {
              const int64_t end = first + rows[static_cast<size_t>(g)];
              for (int64_t r = first; r < std::min(end, first + 40); ++r)
                for (int64_t j = 0; j < kN; j += 7) {
                  double sum = 0, size = 0;
                  for (int64_t t = 0; t < kK; ++t) {
                    const double term = a.at(r, t) * (trans_b ? b.at(g * kN + j, t) : b.at(g * kK + t, j));
                    sum += term, size += std::abs(term);
                  }
                  expect_close<T>(out[0].at(r, j), sum, kK, size, "c");
                }
              for (int64_t i = 0; i < kK; i += 19)
                for (int64_t j = 0; j < kN; j += 7) {
                  double sum = 0, size = 0;
                  for (int64_t r = first; r < end; ++r)
                    sum += x.at(r, i) * dy.at(r, j), size += std::abs(x.at(r, i) * dy.at(r, j));
                  const double bound = static_cast<double>(end - first + 2) * kEps<AccumulatorOf<T>> * (size + 2);
                  ASSERT_NEAR(out[1].at(g * kK + i, j), sum, bound);
                  ASSERT_NEAR(out[2].at(g * kK + i, j), sum + 2, bound);
                  if (first == end) {
                    ASSERT_EQ(out[1].at(g * kK + i, j), 0);
                    ASSERT_EQ(out[2].at(g * kK + i, j), 2);
                  }
                }
              first = end;
            }
            for (int64_t r = first; r < all; ++r)
              for (int64_t j = 0; j < kN; ++j) EXPECT_EQ(out[0].at(r, j), -7);
          });
    }
}

TYPED_TEST(GroupedGemms, HaveTheBitsOfAGemmForEachGroup) {
  SKIP_ON_CUDA("a GPU's library chooses algorithms by shape");
  for (const auto& [isa, table] : ways())
    for (const Rows& rows : kRows)
      for (const auto& [k, n] : {std::pair<int64_t, int64_t>{530, 40}, {24, 1100}})
        for (const bool trans_b : {false, true}) {
          if (this->kType != DType::bf16 && table != &gemm_table(isa)) continue;  // panels are for bf16
          if ((isa == Isa::plain || table != &gemm_table(isa)) && k * sum_of(rows) > 100'000) continue;  // takes long
          SCOPED_TRACE(
              format("{}: {} groups, {} rows, k {}, n {}", device::name_of(isa), rows.size(), sum_of(rows), k, n));
          const int64_t groups = std::ssize(rows), all = sum_of(rows) + 1;
          Normal draw(42);
          TestTensor a = TestTensor({all, k}, this->kType).fill(draw),
                     dy = TestTensor({all, n}, this->kType).fill(draw);
          TestTensor b = TestTensor(trans_b ? Shape{groups * n, k} : Shape{groups * k, n}, this->kType).fill(draw);
          TestTensor c({all, n}, this->kType), dw({groups * k, n}, this->kSums), sum = dw;
          sum.fill([] { return 1.0; });
          TestTensor want_c = c, want_dw = dw, want_sum = sum;
          {
            Machine machine(1, isa);
            Exec& ex = machine.ex;
            int64_t first = 0;
            for (int64_t g = 0; g < groups; ++g) {
              const int64_t m = rows[static_cast<size_t>(g)], of_group = trans_b ? n : k;
              if (m > 0)
                own_product(ex,
                            Gemm{.a = a.tensor().row_range(first, m),
                                 .b = b.tensor().row_range(g * of_group, of_group),
                                 .c = want_c.tensor().row_range(first, m),
                                 .trans_b = trans_b},
                            *table);
              for (TestTensor* to : {&want_dw, &want_sum}) {
                const Tensor part = to->tensor().row_range(g * k, k);
                if (m > 0)
                  own_product(ex,
                              Gemm{.a = a.tensor().row_range(first, m),
                                   .b = dy.tensor().row_range(first, m),
                                   .c = part,
                                   .trans_a = true,
                                   .accumulate = to == &want_sum},
                              *table);
                else if (to == &want_dw)
                  std::fill_n(part.data, part.bytes(), std::byte{});
              }
              first += m;
            }
          }
          for (const int threads : {1, 3}) {
            Machine machine(threads, isa);
            Exec& ex = machine.ex;
            TestTensor made_c = c, made_dw = dw, made_sum = sum;
            own_grouped(ex, GroupedGemm{a, b, made_c, rows, trans_b}, *table);
            own_grouped(ex, GroupedWeightGradient{a, dy, made_dw, rows}, *table);
            own_grouped(ex, GroupedWeightGradient{a, dy, made_sum, rows, true}, *table);
            EXPECT_TRUE(made_c.memory() == want_c.memory()) << threads << " threads";
            EXPECT_TRUE(made_dw.memory() == want_dw.memory()) << threads << " threads";
            EXPECT_TRUE(made_sum.memory() == want_sum.memory()) << threads << " threads";
          }
        }
}

// The arena rejects scratch memory whose size differs from the record.
TYPED_TEST(GroupedGemms, TakeMemoryThatDoesNotDependOnTheRows) {
  constexpr int64_t kAll = 700, kK = 300, kN = 40, kGroups = 6;
  Machine machine(3);
  Buffer memory(*machine.device, "operands", {4 * (kAll + kGroups) * (kK + kN) * 40}, DType::u8);
  Tensor at = memory.tensor();
  const auto next = [&](Shape shape, DType type) {
    const Tensor tensor{at.data, shape, type, 0};
    at.data += round_up(tensor.bytes(), int64_t{64});
    return tensor;
  };
  const Tensor a = next({kAll, kK}, this->kType), b = next({kGroups * kK, kN}, this->kType);
  const Tensor c = next({kAll, kN}, this->kType), dw = next({kGroups * kK, kN}, this->kSums);
  const auto pass = [&](Exec& ex, const Rows& rows) {
    ops::run(ex, GroupedGemm{a, b, c, rows});
    ops::run(ex, GroupedWeightGradient{a, c, dw, rows});
  };
  const auto dry = device::make_dry(*machine.device);
  Arena arena(*machine.device);
  Meter planned, meter;
  Exec plan{*dry, arena, planned}, real{*machine.device, arena, meter};
  arena.record("p", [&] { pass(plan, {100, 100, 100, 100, 100, 200}); });
  arena.seal();
  EXPECT_EQ(planned.of(OpKind::gemm).flops, 2 * 2.0 * kAll * kK * kN);
  std::mt19937 random(43);
  for (int i = 0; i < 60; ++i) {
    Rows rows(kGroups);
    for (int64_t left = kAll, g = 0; g < kGroups; ++g) {
      const int64_t most = i % 2 == 0 ? left : std::min<int64_t>(left, 12);
      left -= rows[static_cast<size_t>((g + i) % kGroups)] =
          static_cast<int64_t>(random() % static_cast<size_t>(most + 1));
    }
    if (i == 0) rows = {kAll, 0, 0, 0, 0, 0};
    arena.begin("p");
    pass(real, rows);
    arena.end();
  }
}

struct GroupedGemmChecks : DeviceTest {};

TEST_F(GroupedGemmChecks, NameRowsThatDoNotFit) {
  Machine machine(1);
  TestTensor a({4, 2}, DType::f32), b({4, 3}, DType::f32), c({4, 3}, DType::f32);
  EXPECT_THROW(run(machine.ex, GroupedGemm{a, b, c, Rows{3, 2}}), Error);
  EXPECT_THROW(run(machine.ex, GroupedGemm{a, b, c, Rows{-1, 2}}), Error);
  EXPECT_THROW(run(machine.ex, GroupedGemm{a, b, c, Rows{1, 1, 1}}), Error);
}

}  // namespace
}  // namespace trainer::ops::testing
