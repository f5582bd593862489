// GEMMs of bf16 panels whose rows or columns do not fill the last panel, in tasks of any height and with sums kept
// between blocks. Kernels store partial panels by other code paths; the bits are those of full panels.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "unit/ops/gemm_panels.h"

namespace trainer::ops {
namespace {

using namespace gemm_test;

/// The results of a GEMM in C and, if an epilogue stores it, in `pre`.
struct Results {
  std::vector<std::byte> out, pre;
  bool operator==(const Results&) const = default;
};
Results results(const Problem& problem) { return {problem.out.memory, problem.pre.memory}; }
void restore(Problem& problem, const Results& from) {
  std::copy(from.out.begin(), from.out.end(), problem.out.memory.begin());
  std::copy(from.pre.begin(), from.pre.end(), problem.pre.memory.begin());
}

/// Returns `before` with the first n elements of its first m rows replaced by those of `whole`.
std::vector<std::byte> part_of(const Matrix& matrix, const std::vector<std::byte>& whole, std::vector<std::byte> before,
                               int64_t m, int64_t n) {
  const int64_t size = size_of(matrix.tensor.dtype);
  for (int64_t i = 0; i < m && !before.empty(); ++i) {
    const int64_t at = matrix.offset(i, 0) * size;
    std::copy_n(whole.begin() + at, n * size, before.begin() + at);
  }
  return before;
}

/// The way in which a GEMM reads B: packed in advance, in strips that its tasks pack, or in chunks packed for all
/// tasks, as if A is transposed.
enum class Way { packed, strips, chunks };

/// Computes the first n columns of the first m rows of a GEMM with B transposed.
void multiply_part(Machine& machine, Problem& problem, const GemmTable& table, Way way, int64_t m, int64_t n) {
  const Gemm full = problem.op;
  const auto cut = [](Tensor& t, int64_t rows, int64_t cols) {
    if (t) t = {t.data, {rows, cols}, t.dtype, t.ld()};
  };
  Gemm& op = problem.op;
  Matrix transposed;
  if (way == Way::chunks) {
    transposed = Matrix({problem.c.k, m}, DType::bf16, problem.c.gap);
    for (int64_t t = 0; t < problem.c.k; ++t)
      for (int64_t i = 0; i < m; ++i) transposed.set(t, i, problem.a.at(i, t));
    op.a = transposed.tensor;
    op.trans_a = true;
  } else {
    cut(op.a, m, problem.c.k);
    EXPECT_TRUE(packs_strips(table, DType::bf16, m, problem.c.k));
  }
  cut(op.b, n, problem.c.k);
  cut(op.c, m, n);
  cut(op.epilogue.pre, m, n);
  cut(op.epilogue.residual, m, n);
  if (op.epilogue.bias) op.epilogue.bias = {op.epilogue.bias.data, {n}, op.epilogue.bias.dtype};
  multiply(machine, problem, table, way == Way::packed);
  problem.op = full;
}

/// Makes products, sums, residuals and results of every third row subnormal, or nearly so; zeroes every other bias.
void make_small(Problem& problem) {
  const auto scale = [](Matrix& x, int64_t i, int64_t j, int power) { x.set(i, j, std::ldexp(x.at(i, j), power)); };
  const auto [m, n, k] = std::array{problem.c.m, problem.c.n, problem.c.k};
  for (int64_t t = 0; t < k; ++t) {
    for (int64_t i = 1; i < m; i += 3) scale(problem.a, i, t, -64);
    for (int64_t j = 0; j < n; ++j) scale(problem.b, j, t, -60 - static_cast<int>(j % 8));
  }
  for (int64_t j = 0; j < n; j += 2)
    if (problem.op.epilogue.bias) problem.bias.set(0, j, 0);
  for (int64_t i = 1; i < m; i += 3)
    for (int64_t j = 0; j < n; ++j)
      if (problem.op.epilogue.residual) scale(problem.residual, i, j, -124 - static_cast<int>(j % 8));
}

// 56 rows and 96 columns fill whole panels of pairs on every instruction set. In chunks, a GEMM with fp32 results has
// panels of other widths and other blocks of k than with a packed weight or strips.
TEST(GemmParts, HaveTheBitsOfWholePanels) {
  constexpr int64_t kRows = 56, kCols = 96;
  for (const Panels& set : panels()) {
    Machine machine(2, set.isa);
    for (const DType out : {DType::bf16, DType::f32})
      for (const Ending ending : {Ending::none, Ending::all, Ending::gradient, Ending::accumulate}) {
        if (ending == Ending::accumulate && out == DType::bf16) continue;
        for (const int64_t k : {67, 530})
          for (const bool small : {false, true}) {
            Problem problem({kRows, kCols, k, DType::bf16, out, false, true, ending, 3});
            if (small) make_small(problem);
            const Results before = results(problem);
            multiply(machine, problem, *set.table, true);
            if (!small) problem.expect_result();
            const Results whole = results(problem);
            // 1, 4, 5, 8, 9 and all 14 rows of the last panel of 14; 1, 4, 5 and all 8 of the last panel of 8.
            for (const auto& [m, n] : std::initializer_list<std::array<int64_t, 2>>{
                     {29, 96}, {32, 95}, {33, 81}, {36, 49}, {37, 5}, {56, 95}, {56, 33}, {56, 96}})
              for (const Way way : {Way::packed, Way::strips, Way::chunks}) {
                restore(problem, before);
                multiply_part(machine, problem, *set.table, way, m, n);
                const std::string where =
                    format("{}, small {}: the part m {} n {}, way {}, by {} on {}", text(problem.c), small, m, n,
                           static_cast<int>(way), set.name, device::name_of(set.isa));
                EXPECT_TRUE(problem.out.memory == part_of(problem.out, whole.out, before.out, m, n)) << where;
                EXPECT_TRUE(problem.pre.memory == part_of(problem.pre, whole.pre, before.pre, m, n))
                    << "pre: " << where;
              }
          }
      }
  }
}

// Some results are near the limit below which values are flushed to zero; the test above would prove less without them.
TEST(GemmParts, OfSmallNumbersHaveSmallResults) {
  const Panels set = panels_of(true).back();
  Machine machine(1, set.isa);
  for (const DType out : {DType::bf16, DType::f32})
    for (const Ending ending : {Ending::none, Ending::all, Ending::gradient}) {
      Problem problem({56, 96, 67, DType::bf16, out, false, true, ending, 3});
      make_small(problem);
      multiply(machine, problem, *set.table, true);
      int64_t small = 0;
      for (int64_t i = 1; i < 56; i += 3)
        for (int64_t j = 0; j < 96; ++j) {
          const double value = std::abs(problem.out.at(i, j));
          small += value > 0 && value < 0x1p-118;
        }
      EXPECT_GT(small, 50) << text(problem.c);
    }
}

// If k fits one block, a task may have more rows; one thread then takes them all at once.
TEST(GemmParts, OfTasksOfMostRowsMatchDoublePrecision) {
  const Panels set = panels_of(true).back();
  const auto& sizes = set.table->panels->bf16_out;
  constexpr int64_t kTerms = 40;
  ASSERT_GT(sizes.whole_rows, sizes.block_rows);
  for (const int64_t rows_of_last : {int64_t{1}, int64_t{4}, int64_t{5}, int64_t{8}, int64_t{9}, sizes.rows}) {
    const int64_t m = sizes.whole_rows - sizes.rows + rows_of_last;
    for (const DType out : {DType::bf16, DType::f32})
      for (const Ending ending : {Ending::none, Ending::all}) {
        Problem problem({m, 70, kTerms, DType::bf16, out, false, true, ending, 3});
        Results first;
        for (const int threads : {1, 3}) {
          Machine machine(threads, set.isa);
          multiply(machine, problem, *set.table, true);
          problem.expect_result();
          if (first.out.empty()) first = results(problem);
          EXPECT_TRUE(results(problem) == first) << text(problem.c) << ", threads " << threads;
        }

        // The task has all rows of the result: it packs all of A.
        device::DryDevice dry(1, set.isa);
        Arena arena(dry);
        Meter meter;
        problem.op.packed_b = problem.op.b;  // nothing is computed
        arena.record("product", [&] {
          Exec ex{dry, arena, meter};
          own_product(ex, problem.op, *set.table);
        });
        EXPECT_GE(arena.programs().at("product").peak, m * kTerms * size_of(DType::bf16)) << text(problem.c);
      }
  }
}

// Several blocks of k and several tasks along the rows; the last has a partial panel, whose sums are kept too.
TEST(GemmParts, KeepTheirSumsBetweenBlocks) {
  struct Kept {
    Case c;
    bool packed;
  };
  const auto bf16_of_weights = [](int64_t m, DType out, Ending ending) {
    return Kept{{m, 70, 3101, DType::bf16, out, false, true, ending, 3}, true};
  };
  // As for gradients of weights; the sums of all tiles are kept between chunks of k.
  const auto f32_over_tokens = [](int64_t m, int64_t n, Ending ending) {
    return Kept{{m, n, 1101, DType::bf16, DType::f32, true, false, ending, 3}, false};
  };
  for (const auto& [c, packed] :
       {bf16_of_weights(127, DType::bf16, Ending::all), bf16_of_weights(131, DType::bf16, Ending::gradient),
        bf16_of_weights(131, DType::f32, Ending::accumulate), bf16_of_weights(135, DType::f32, Ending::all),
        f32_over_tokens(259, 70, Ending::accumulate), f32_over_tokens(263, 50, Ending::none),
        f32_over_tokens(21, 800, Ending::accumulate), f32_over_tokens(22, 70, Ending::all)})
    for (const bool pairs : {true, false}) {
      const Panels set = panels_of(pairs).back();
      Problem problem(c);
      const Results before = results(problem);
      Results first;
      for (const int threads : {1, 3}) {
        Machine machine(threads, set.isa);
        restore(problem, before);
        multiply(machine, problem, *set.table, packed);
        problem.expect_result();
        if (first.out.empty()) first = results(problem);
        EXPECT_TRUE(results(problem) == first) << text(c) << ", " << set.name << ", threads " << threads;
      }
    }
}

}  // namespace
}  // namespace trainer::ops
