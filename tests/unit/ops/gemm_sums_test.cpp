// Gemm::b_sums: the sums of B's columns beside a product.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "ops/cpu/gemm.h"
#include "unit/ops/gemm_problem.h"

namespace trainer::ops {
namespace {

using namespace gemm_test;

using testing::instruction_sets;
using testing::on_cuda;

/// A weight gradient and the gradient of the bias beside it.
struct Gradients : Problem {
  Gradients(int64_t m, int64_t n, int64_t k, DType in, bool add, bool integers = false)
      : Problem(
            {m, n, k, in, accumulator_of(in), true, false, add ? Ending::accumulate : Ending::none, n % 3, integers}),
        sums({1, n}, out.tensor.dtype) {
    for (int64_t j = 0; j < n; ++j) {
      const double before = static_cast<double>(j % 7);
      sums.set(0, j, before);
      double sum = add ? before : 0, size = std::abs(sum);
      for (int64_t t = 0; t < k; ++t) sum += b.at(t, j), size += std::abs(b.at(t, j));
      expected.push_back(sum);
      bound.push_back(integers ? 0 : static_cast<double>(k + 1) * (in == DType::f64 ? 0x1p-53 : 0x1p-24) * size);
    }
    op.b_sums = {sums.memory.data(), {n}, out.tensor.dtype};
    op.add_to_b_sums = add;
  }
  void expect_sums() const {
    for (size_t j = 0; j < expected.size(); ++j)
      ASSERT_NEAR(sums.at(0, static_cast<int64_t>(j)), expected[j], bound[j]) << text(c) << ", column " << j;
    EXPECT_TRUE(sums.gaps_intact()) << text(c);
  }
  Matrix sums;
  std::vector<double> expected, bound;
};

std::vector<DType> types() {
  std::vector<DType> all{DType::f32, DType::bf16};
  if (!on_cuda()) all.push_back(DType::f64);
  return all;
}

struct GemmSums : testing::DeviceTest {};

TEST_F(GemmSums, AreThoseOfDoublePrecisionAndLeaveTheProductAlone) {
  for (const Isa isa : instruction_sets()) {
    Machine machine(2, isa);
    TestExec& ex = machine.ex;
    for (const DType type : types())
      for (const bool add : {false, true})
        for (const bool integers : {false, true})
          for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
                   {9, 1, 40}, {31, 47, 53}, {97, 131, 65}, {20, 515, 700}, {3, 70, 33}, {20, 33, 0}, {0, 33, 5}}) {
            Gradients problem(m, n, k, type, add, integers);
            run(ex, problem.op);
            problem.expect_result();
            problem.expect_sums();
          }
  }
}

// Each part of B is packed once, whichever chunks it is cut into: nothing is missing, nothing is summed twice.
TEST_F(GemmSums, CoverLargeOperandsOnce) {
  SKIP_ON_CUDA("the sizes of a CPU's caches");
  Machine machine(2, device::detect_isa());
  TestExec& ex = machine.ex;
  for (const auto& [m, n, k] :
       std::initializer_list<std::array<int64_t, 3>>{{10, 9000, 600}, {11, 300, 17000}, {9, 1100, 9000}}) {
    Gradients problem(m, n, k, DType::f32, true, true);
    run(ex, problem.op);
    problem.expect_result();
    problem.expect_sums();
  }
}

TEST_F(GemmSums, HaveTheSameBitsForEveryThreadCount) {
  for (const Isa isa : instruction_sets())
    for (const DType type : types()) {
      Gradients problem(70, 600, 900, type, false);
      std::vector<std::byte> first;
      for (const int threads : {1, 2, 3, 7}) {
        Machine machine(threads, isa);
        TestExec& ex = machine.ex;
        run(ex, problem.op);
        if (first.empty()) first = problem.sums.memory;
        EXPECT_EQ(problem.sums.memory, first) << name_of(type) << ", threads " << threads;
      }
      problem.expect_sums();
    }
}

TEST_F(GemmSums, OfAPackedOperandAreFormedTooAndOfATransposedOneRefused) {
  SKIP_ON_CUDA("weights are packed for CPUs");
  Machine machine(2, device::detect_isa());
  TestExec& ex = machine.ex;
  Gradients problem(40, 51, 70, DType::f32, true);
  Buffer packed(*machine.device, "packed", {packed_bytes(*machine.device, DType::f32, 70, 51)}, DType::u8);
  run(ex, PackB{problem.op.b, packed, false});
  problem.op.packed_b = packed;
  run(ex, problem.op);
  problem.expect_result();
  problem.expect_sums();

  Problem transposed({4, 6, 6, DType::f32, DType::f32, false, true});
  transposed.op.b_sums = {problem.sums.memory.data(), {6}, DType::f32};
  EXPECT_THROW(run(ex, transposed.op), Error);
}

TEST_F(GemmSums, StandBesideTilesAndPairsAsWell) {
  SKIP_ON_CUDA("tiles and pairs of CPUs");
  const Isa best = device::detect_isa();
  const bool pairs = best >= Isa::avx512bf16 && device::available(Isa::avx512bf16);
  for (const GemmTable* table : {best >= Isa::amx ? &avx512::gemm_table_tiles : &plain::gemm_table_tiles,
                                 pairs ? &avx512::gemm_table_pairs : &plain::gemm_table_pairs})
    for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{{31, 47, 53}, {50, 330, 1300}}) {
      Machine machine(2, best);
      Gradients problem(m, n, k, DType::bf16, false);
      ASSERT_TRUE(sums_columns(problem.op));
      own_product(machine.ex, problem.op, *table);
      problem.expect_result();
      problem.expect_sums();
    }
}

}  // namespace
}  // namespace trainer::ops
