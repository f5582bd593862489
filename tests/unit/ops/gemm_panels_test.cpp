// GEMMs of bf16 panels, by matrix tiles and by dot products of pairs: on their units if the CPU has them, else in plain
// C++ with the same packing, blocking and epilogues. Both units flush subnormals to zero: bounds for normal draws need
// no allowance for it, since each product loses less than 2^−126.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "unit/ops/gemm_panels.h"

namespace trainer::ops {
namespace {

using namespace gemm_test;

TEST(GemmPanels, MatchDoublePrecisionForEveryTransposeAndOddSize) {
  for (const Panels& set : panels()) {
    Machine machine(2, set.isa);
    for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{{9, 1, 40},
                                                                               {16, 16, 32},
                                                                               {13, 37, 1},
                                                                               {31, 47, 53},
                                                                               {32, 32, 64},
                                                                               {97, 31, 65},
                                                                               {50, 65, 300},
                                                                               {41, 130, 1027},
                                                                               {15, 49, 3100},
                                                                               {521, 33, 40},
                                                                               {20, 33, 0}})
      for (const DType out : {DType::bf16, DType::f32})
        for (const bool trans_a : {false, true})
          for (const bool trans_b : {false, true})
            for (const bool packed : {false, true}) {
              Problem problem({m, n, k, DType::bf16, out, trans_a, trans_b, Ending::none, n % 3});
              multiply(machine, problem, *set.table, packed);
              problem.expect_result();
            }
  }
}

TEST(GemmPanels, ApplyEveryEpilogueOnce) {
  for (const Panels& set : panels()) {
    Machine machine(2, set.isa);
    for (const DType out : {DType::bf16, DType::f32})
      for (const Ending ending : kEndings) {
        if (ending == Ending::accumulate && out == DType::bf16) continue;
        // The sum over k has one step, several, more than one block, or no terms.
        for (const auto& [m, n, k] :
             std::initializer_list<std::array<int64_t, 3>>{{40, 51, 30}, {70, 70, 200}, {33, 40, 1100}, {20, 19, 0}}) {
          Problem problem({m, n, k, DType::bf16, out, false, true, ending, 3});
          multiply(machine, problem, *set.table, true);
          problem.expect_result();
        }
      }
  }
}

TEST(GemmPanels, AreExactOnSmallIntegers) {
  for (const Panels& set : panels()) {
    Machine machine(2, set.isa);
    for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{{70, 70, 1300}, {300, 600, 33}})
      for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true}) {
          Problem problem({m, n, k, DType::bf16, DType::f32, trans_a, trans_b, Ending::accumulate, 0, true});
          multiply(machine, problem, *set.table, false);
          problem.expect_result();
        }
  }
}

TEST(GemmPanels, HaveTheSameBitsForEveryThreadCountAndForPackedWeights) {
  for (const Panels& set : panels())
    for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
             {300, 130, 96}, {70, 600, 1100}, {40, 70, 3300}, {521, 45, 97}, {521, 45, 1100}}) {
      EXPECT_EQ(packs_strips(*set.table, DType::bf16, m, k), m < 512);  // both ways to read an unpacked B
      for (const DType out : {DType::bf16, DType::f32}) {
        Problem problem({m, n, k, DType::bf16, out, false, true});
        std::vector<std::byte> first;
        for (const int threads : {1, 2, 7})
          for (const bool packed : {false, true}) {
            Machine machine(threads, set.isa);
            multiply(machine, problem, *set.table, packed);
            if (first.empty()) {
              problem.expect_result();
              first = problem.out.memory;
            }
            EXPECT_EQ(problem.out.memory, first) << text(problem.c) << ", threads " << threads << ", packed " << packed;
          }
      }
    }
}

// Small batches read packed weights without the unit, so tiles of AVX-512 are tested on CPUs without AMX, too.
TEST(GemmPanels, SmallBatchesHaveTheSameBitsForPackedWeights) {
  std::vector<Panels> sets = panels_of(true);
  for (const Panels& set : panels_of(false)) sets.push_back(set);
  if (device::available(Isa::avx512) && device::detect_isa() >= Isa::avx512)
    sets.push_back({Isa::avx512, &avx512::gemm_table_tiles, "tiles"});
  for (const Panels& set : sets)
    for (const int64_t m : {1, 2, 3, 8})
      for (const auto& [n, k] :
           std::initializer_list<std::array<int64_t, 2>>{{1, 1}, {200, 37}, {417, 96}, {70, 1101}, {33, 3140}})
        for (const DType out : {DType::bf16, DType::f32})
          for (const bool trans_b : {false, true}) {
            Problem problem({m, n, k, DType::bf16, out, false, trans_b, Ending::all, n % 3});
            Machine machine(3, set.isa);
            multiply(machine, problem, *set.table, false);
            problem.expect_result();
            const std::vector<std::byte> unpacked = problem.out.memory;
            problem.out.fill([] { return 7; });
            multiply(machine, problem, *set.table, true);
            EXPECT_EQ(problem.out.memory, unpacked)
                << text(problem.c) << ", " << set.name << " of " << device::name_of(set.isa);
          }
}

// Tiles and pairs in plain C++ define their units' results, also where subnormals, which are flushed to zero, appear as
// operands (rows at 2^−130), as products and as sums (columns of smaller powers).
TEST(GemmPanels, HaveTheSameBitsOnEveryInstructionSet) {
  constexpr int kRowPowers[] = {0, -60, -100, -120, -126, -130}, kColPowers[] = {0, -1, -3, -7, -30};
  for (const bool pairs : {true, false})
    for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{{70, 45, 200}, {33, 40, 1100}}) {
      const std::vector<Panels> sets = panels_of(pairs);
      Problem problem({m, n, k, DType::bf16, DType::f32});
      const auto scale = [](Matrix& x, int64_t i, int64_t j, int power) { x.set(i, j, std::ldexp(x.at(i, j), power)); };
      for (int64_t t = 0; t < k; ++t) {
        for (int64_t i = 0; i < m; ++i) scale(problem.a, i, t, kRowPowers[i % 6]);
        for (int64_t j = 0; j < n; ++j) scale(problem.b, t, j, kColPowers[j % 5]);
      }
      std::vector<std::byte> first;
      for (const Panels& set : sets) {
        Machine machine(2, set.isa);
        multiply(machine, problem, *set.table, false);
        if (first.empty()) first = problem.out.memory;
        EXPECT_EQ(problem.out.memory, first) << text(problem.c) << ", " << set.name << ", " << device::name_of(set.isa);
        int64_t small = 0;
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            const double sum = problem.out.at(i, j);
            EXPECT_TRUE(sum == 0 || (i % 6 != 5 && std::abs(sum) >= 0x1p-126)) << i << ", " << j;
            small += sum != 0 && std::abs(sum) < 0x1p-120;
          }
        EXPECT_GT(small, 0);  // some sums are nearly subnormal
      }
    }
}

// A sum is flushed if it is below 2^−126 after rounding to 24 bits, even if f32, whose subnormals have fewer bits,
// would round it up to 2^−126. With u the last of the 24 bits, 2^−126 − 3/4 u is flushed, 2^−126 − 1/4 u is not.
TEST(GemmPanels, OfPairsFlushWhatIsSubnormalAfterRounding) {
  const std::vector<Panels> sets = panels_of(true);
  for (const auto& [quarters, want] : std::initializer_list<std::pair<double, double>>{{3, 0}, {1, 0x1p-126}})
    for (const Panels& set : sets) {
      Problem problem({9, 9, 2, DType::bf16, DType::f32});
      for (int64_t i = 0; i < 9; ++i) {  // the second term first
        problem.a.set(i, 1, 0x1p-63), problem.b.set(1, i, 0x1p-63);
        problem.a.set(i, 0, -quarters * 0x1p-76), problem.b.set(0, i, 0x1p-76);
      }
      Machine machine(1, set.isa);
      multiply(machine, problem, *set.table, false);
      EXPECT_EQ(problem.out.at(8, 8), want) << device::name_of(set.isa);
    }
}

// The unit rounds results to bf16: the same bits as rounding by integer arithmetic, if nothing is subnormal.
TEST(GemmPanels, OfPairsRoundResultsAlikeOnEveryInstructionSet) {
  for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{{30, 75, 301}, {14, 32, 64}}) {
    Problem narrow({m, n, k, DType::bf16, DType::bf16}), wide({m, n, k, DType::bf16, DType::f32});
    for (const Panels& set : panels_of(true)) {
      Machine machine(2, set.isa);
      multiply(machine, narrow, *set.table, true);
      multiply(machine, wide, *set.table, true);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          ASSERT_EQ(narrow.out.at(i, j), static_cast<double>(bf16(wide.out.at(i, j)))) << i << ", " << j;
    }
  }
}

// Results large enough for non-temporal stores, in whole cache lines and, with a gap, in partial ones.
TEST(GemmPanels, WriteLargeResultsWholly) {
  for (const Panels& set : panels()) {
    Machine machine(2, set.isa);
    for (const DType out : {DType::bf16, DType::f32})
      for (const int64_t gap : {0, 5}) {
        Problem problem({1030, 1056, 20, DType::bf16, out, false, false, Ending::all, gap});
        // The heap aligns to 16 bytes only; this buffer begins at a cache line.
        Buffer c(*machine.device, "c", {1030, 1056 + gap}, out);
        const Tensor own = problem.op.c;
        problem.op.c = {c.tensor().data, own.shape, out, own.ld()};
        multiply(machine, problem, *set.table, false);
        std::memcpy(own.data, problem.op.c.data, static_cast<size_t>(1029 * own.ld() + 1056) * size_of(out));
        if (gap == 0) problem.expect_result();
        for (int64_t i = 0; i < 1030; i += 97)
          for (int64_t j = 0; j < 1056; ++j) {
            const size_t at = static_cast<size_t>(i * 1056 + j);
            ASSERT_NEAR(problem.out.at(i, j), problem.value[at], problem.bound[at]) << i << ", " << j << " gap " << gap;
          }
      }
  }
}

// More of B than is packed at a time: chunks along n, along k and along both, with sums kept between them. (For small
// batches with A not transposed, B is packed in strips, over many blocks of k, and a large A is packed block by block.)
TEST(GemmPanels, CutLargeOperandsIntoChunks) {
  const auto expect = [](Problem problem, std::initializer_list<bool> packed_or_not) {
    const std::vector<std::byte> before = problem.out.memory;
    for (const bool pairs : {true, false}) {
      std::vector<std::byte> first;
      for (const bool packed : packed_or_not) {
        const Panels set = panels_of(pairs).back();
        Machine machine(packed ? 2 : 7, set.isa);
        problem.out.memory = before;
        multiply(machine, problem, *set.table, packed);
        problem.expect_result();
        if (first.empty()) first = problem.out.memory;
        EXPECT_EQ(problem.out.memory, first) << text(problem.c) << ", by " << set.name << ", packed " << packed;
      }
    }
  };
  for (const auto& [m, n, k] :
       std::initializer_list<std::array<int64_t, 3>>{{9, 2100, 5000}, {11, 40, 30000}, {9, 1100, 9000}}) {
    expect(Problem({m, n, k, DType::bf16, DType::bf16, true, true, Ending::residual_in_place}), {false});
    expect(Problem({m, n, k, DType::bf16, DType::bf16, false, true, Ending::residual_in_place}), {false, true});
  }
  for (const bool trans_b : {true, false})
    expect(Problem({300, 70, 14001, DType::bf16, DType::bf16, false, trans_b, Ending::residual_in_place}),
           {false, true});
  expect(Problem({260, 40, 16500, DType::bf16, DType::f32, false, true, Ending::accumulate}), {false, true});
  expect(Problem({11, 500, 17000, DType::bf16, DType::f32, true, false, Ending::accumulate}), {false});
}

TEST(GemmPanels, NanAndInfinityStayInTheirRowAndColumn) {
  for (const Panels& set : panels()) {
    Machine machine(2, set.isa);
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true}) {
        Problem problem({20, 37, 19, DType::bf16, DType::bf16, trans_a, trans_b, Ending::none, 1});
        trans_a ? problem.a.set(5, 3, std::numeric_limits<double>::quiet_NaN())
                : problem.a.set(3, 5, std::numeric_limits<double>::quiet_NaN());
        trans_b ? problem.b.set(36, 7, std::numeric_limits<double>::infinity())
                : problem.b.set(7, 36, std::numeric_limits<double>::infinity());
        multiply(machine, problem, *set.table, false);
        for (int64_t i = 0; i < 20; ++i)
          for (int64_t j = 0; j < 37; ++j)
            EXPECT_EQ(std::isfinite(problem.out.at(i, j)), i != 3 && j != 36) << i << " " << j;
      }
  }
}

TEST(GemmPanels, DryDeviceTakesTheScratchOfTheRealOne) {
  for (const Panels& set : panels())
    for (const auto& [m, n, k] :
         std::initializer_list<std::array<int64_t, 3>>{{300, 800, 500}, {12, 700, 2000}, {300, 9, 14000}})
      for (const bool trans_a : {true, false}) {  // chunks and strips of B
        Problem problem({m, n, k, DType::bf16, DType::f32, trans_a, false, Ending::accumulate});
        device::CpuDevice cpu(2, set.isa);
        device::DryDevice dry(2, set.isa);
        Arena arena(cpu);
        Meter meter;
        arena.record("product", [&] {
          Exec ex{dry, arena, meter};
          own_product(ex, problem.op, *set.table);
        });
        arena.seal();
        arena.begin("product");
        Exec ex{cpu, arena, meter};
        own_product(ex, problem.op, *set.table);
        arena.end();
        problem.expect_result();
      }
}

}  // namespace
}  // namespace trainer::ops
