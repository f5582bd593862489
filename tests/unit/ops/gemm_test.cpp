#include "ops/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/cpu/gemm.h"
#include "unit/ops/gemm_problem.h"

namespace trainer::ops {
namespace {

using namespace gemm_test;

using testing::instruction_sets;
using testing::on_cuda;

/// Returns the types of operands and result.
std::vector<std::pair<DType, DType>> types() {
  std::vector<std::pair<DType, DType>> all{
      {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
  if (!on_cuda()) all.emplace_back(DType::f64, DType::f64);
  return all;
}

struct Gemm : testing::DeviceTest {};

template <typename F>
void for_each_case(const std::vector<std::array<int64_t, 3>>& sizes, F&& fn) {
  for (const auto& [m, n, k] : sizes)
    for (const auto& [in, out] : types())
      for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true}) fn(Case{m, n, k, in, out, trans_a, trans_b});
}

const std::vector<std::array<int64_t, 3>> kOddSizes = {
    {1, 1, 1},      {1, 17, 9},    {1, 530, 70},   {2, 33, 31}, {3, 5, 258},  {5, 40, 64},
    {8, 70, 19},    {9, 1, 40},    {9, 16, 3},     {13, 37, 1}, {31, 47, 53}, {97, 31, 65},
    {100, 515, 33}, {50, 65, 300}, {121, 90, 517}, {7, 3, 0},   {20, 33, 0},
};

TEST_F(Gemm, MatchesDoublePrecisionForEveryTransposeTypeAndOddSize) {
  for (const Isa isa : instruction_sets()) {
    Machine machine(2, isa);
    for_each_case(kOddSizes, [&](Case c) {
      c.gap = c.n % 3;
      Problem problem(c);
      TestExec& ex = machine.ex;
      run(ex, problem.op);
      problem.expect_result();
    });
  }
}

TEST_F(Gemm, AppliesEveryEpilogueOnce) {
  for (const Isa isa : instruction_sets()) {
    Machine machine(2, isa);
    for (const auto& [in, out] : types())
      for (const Ending ending : kEndings) {
        if (ending == Ending::accumulate && out == DType::bf16) continue;
        for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
                 {3, 45, 70}, {40, 51, 30}, {70, 40, 700}, {41, 33, 1700}, {20, 19, 0}, {2, 19, 0}})
          for (const auto& [trans_a, trans_b] : {std::pair{false, false}, {false, true}, {true, false}}) {
            // Weight gradients have no epilogue.
            if (trans_a && ending != Ending::none && ending != Ending::accumulate) continue;
            Problem problem({m, n, k, in, out, trans_a, trans_b, ending, 3});
            if (on_cuda()) problem.allow_rounded_sums();
            TestExec& ex = machine.ex;
            run(ex, problem.op);
            problem.expect_result();
          }
      }
  }
}

// With rows aligned to 16 bytes, a GPU's library may compute the gradient of GELU in its epilogue.
TEST_F(Gemm, TakesTheGradientOfGeluWhereRowsAreAligned) {
  for (const Isa isa : instruction_sets()) {
    Machine machine(2, isa);
    for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{{40, 64, 70}, {33, 600, 96}})
      for (const bool trans_b : {false, true})
        for (const int64_t gap : {0, 8}) {
          Problem problem({m, n, k, DType::bf16, DType::bf16, false, trans_b, Ending::gradient, gap});
          if (on_cuda()) {
            problem.allow_approximate_slope();
            problem.allow_rounded_sums();
          }
          TestExec& ex = machine.ex;
          run(ex, problem.op);
          problem.expect_result();
        }
  }
}

TEST_F(Gemm, IsExactOnSmallIntegers) {
  for (const Isa isa : instruction_sets()) {
    Machine machine(2, isa);
    for_each_case({{4, 70, 33}, {61, 70, 300}, {15, 600, 20}}, [&](Case c) {
      if (c.out == DType::bf16) return;
      c.integers = true;
      Problem problem(c);
      TestExec& ex = machine.ex;
      run(ex, problem.op);
      problem.expect_result();
    });
  }
}

TEST_F(Gemm, HasTheSameBitsForEveryThreadCountAndForPackedWeights) {
  SKIP_ON_CUDA("weights are packed for CPUs");
  const std::vector<std::array<int64_t, 3>> sizes = {{1, 600, 90},  {1, 612, 400},    {2, 65, 400},  {3, 70, 700},
                                                     {6, 4200, 90}, {130, 1100, 280}, {40, 20, 600}, {130, 600, 1700}};
  for (const Isa isa : instruction_sets())
    for_each_case(sizes, [&](Case c) {
      Problem problem(c);
      std::vector<std::byte> first;
      for (const int threads : {1, 2, 3, 7})
        for (const bool packed : {false, true}) {
          Machine machine(threads, isa);
          TestExec& ex = machine.ex;
          Buffer weight;
          problem.op.packed_b = {};
          if (packed) {
            weight = Buffer(*machine.device, "packed", {packed_bytes(*machine.device, c.in, c.k, c.n)}, DType::u8);
            run(ex, PackB{problem.op.b, weight, c.trans_b});
            problem.op.packed_b = weight;
          }
          run(ex, problem.op);
          if (first.empty()) {
            problem.expect_result();
            first = problem.out.memory;
          }
          EXPECT_EQ(problem.out.memory, first) << text(c) << ", threads " << threads << ", packed " << packed;
        }
    });
}

// So that a text does not depend on how many others are decoded in the same pass.
TEST_F(Gemm, RowsOfSmallBatchesHaveTheBitsOfASingleRow) {
  SKIP_ON_CUDA("cuBLASLt chooses other kernels for other numbers of rows");
  for (const Isa isa : instruction_sets())
    for (const auto& [in, out] : types())
      for (const bool trans_b : {false, true}) {
        Problem problem(Case{8, 203, 530, in, out, false, trans_b});
        Machine machine(2, isa);
        TestExec& ex = machine.ex;
        run(ex, problem.op);
        problem.expect_result();
        for (int64_t rows = 1; rows < 8; ++rows) {
          Problem part(problem.c);
          part.op.a = part.op.a.row_range(8 - rows, rows);
          part.op.c = part.op.c.row_range(8 - rows, rows);
          run(ex, part.op);
          for (int64_t i = 8 - rows; i < 8; ++i)
            for (int64_t j = 0; j < problem.c.n; ++j)
              ASSERT_EQ(part.out.at(i, j), problem.out.at(i, j)) << text(problem.c) << ", " << rows << " rows";
        }
      }
}

// More of B than is packed at a time: chunks along n, along k and along both, with sums kept between them.
TEST_F(Gemm, SplitsLargeOperandsIntoChunks) {
  SKIP_ON_CUDA("packed weights and the sizes of a CPU's caches");
  const Isa isa = device::detect_isa();
  for (const auto& [m, n, k] : std::initializer_list<std::array<int64_t, 3>>{
           {10, 9000, 600}, {11, 300, 17000}, {9, 1100, 9000}, {500, 40, 8500}})
    for (const DType type : {DType::bf16, DType::f32}) {
      std::vector<std::byte> first;
      for (const bool packed : {false, true}) {
        Problem problem({m, n, k, type, type, false, true, Ending::residual_in_place});
        Machine machine(2, isa);
        TestExec& ex = machine.ex;
        Buffer weight;
        if (packed) {
          weight = Buffer(*machine.device, "packed", {packed_bytes(*machine.device, type, k, n)}, DType::u8);
          run(ex, PackB{problem.op.b, weight, true});
          problem.op.packed_b = weight;
        }
        run(ex, problem.op);
        problem.expect_result();
        if (first.empty()) first = problem.out.memory;
        EXPECT_EQ(problem.out.memory, first) << text(problem.c);
      }
    }
}

TEST_F(Gemm, LeavesNothingToDoWithoutRowsOrColumns) {
  Machine machine(2, device::detect_isa());
  TestExec& ex = machine.ex;
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}}) {
    Problem problem({m, n, 4, DType::f32, DType::f32});
    run(ex, problem.op);
  }
  EXPECT_EQ(machine.meter.of(OpKind::gemm).calls, 2);
}

TEST_F(Gemm, NanAndInfinityStayInTheirRowAndColumn) {
  Machine machine(2, device::detect_isa());
  Problem problem({20, 37, 19, DType::f32, DType::f32});
  problem.a.set(3, 5, std::numeric_limits<double>::quiet_NaN());
  problem.b.set(7, 36, std::numeric_limits<double>::infinity());
  TestExec& ex = machine.ex;
  run(ex, problem.op);
  for (int64_t i = 0; i < 20; ++i)
    for (int64_t j = 0; j < 37; ++j) EXPECT_EQ(std::isfinite(problem.out.at(i, j)), i != 3 && j != 36) << i << " " << j;
}

TEST_F(Gemm, DryDeviceTakesTheScratchOfTheRealOne) {
  for (const auto& [m, n, k] :
       std::initializer_list<std::array<int64_t, 3>>{{300, 800, 1500}, {3, 700, 60}, {12, 5000, 2000}}) {
    Problem problem({m, n, k, DType::f32, DType::f32, true, false});
    const auto device = testing::make_test_device(2, device::detect_isa()), dry = device::make_dry(*device);
    Arena arena(*device);
    Meter dry_meter, meter;
    arena.record("product", [&] {
      TestExec ex{{*dry, arena, dry_meter}};
      ops::Gemm op = problem.op;
      op.a.data = op.b.data = op.c.data = nullptr;
      run(ex, op);
    });
    arena.seal();
    arena.begin("product");
    TestExec ex{{*device, arena, meter}};
    run(ex, problem.op);
    arena.end();
    problem.expect_result();
    EXPECT_EQ(dry_meter.of(OpKind::gemm).flops, meter.of(OpKind::gemm).flops);
    EXPECT_EQ(meter.of(OpKind::gemm).flops, 2.0 * static_cast<double>(m * n * k));
  }
}

TEST_F(Gemm, NamesTheShapesThatDoNotFit) {
  Machine machine(1, device::detect_isa());
  Problem problem({4, 6, 5, DType::f32, DType::f32});
  problem.op.trans_b = true;
  TestExec& ex = machine.ex;
  try {
    run(ex, problem.op);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[5, 6]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trainer::ops
