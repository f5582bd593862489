// Products of a CUDA device around the library: what is fused, what is left to kernels of our own, how plans are kept,
// how a tuning table takes part; and what operators do with tokens that do not exist. On the emulated device, whose
// library counts and can refuse.
#include "cublasLt.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/gemm_tuning.h"
#include "unit/ops/gemm_problem.h"

namespace trainer::ops {
namespace {

using namespace gemm_test;

struct Products : ::testing::Test {
  Products() {
    use_gemm_tuning(*machine.device, {});  // forgets plans
    emulator::blas() = {};
  }
  ~Products() override {
    emulator::blas() = {};
    use_gemm_tuning(*machine.device, {});
  }
  void expect_right(const Case& c) {
    Problem problem(c);
    run(machine.ex, problem.op);
    problem.expect_result();
  }
  Machine machine{1};
  int& products = emulator::blas().products;
};

TEST_F(Products, FusesWhatTheLibraryMeansAsWeDo) {
  // Everything aligned: one call, and at most the activation behind it.
  for (const auto& [in, out] : {std::pair{DType::bf16, DType::bf16}, {DType::f32, DType::f32}})
    for (const Ending ending : kEndings) {
      if (ending == Ending::accumulate && out == DType::bf16) continue;
      products = 0;
      const Case c{40, 64, 48, in, out, false, true, ending, 8};
      Problem problem(c);
      run(machine.ex, problem.op);
      problem.expect_result();
      EXPECT_EQ(products, 1) << text(c);
    }
}

TEST_F(Products, WorksWithoutEpiloguesOfTheLibraryAndInParts) {
  emulator::blas().refuse_epilogues = true;
  for (const auto& [in, out] :
       {std::pair{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::f32}})
    for (const Ending ending : kEndings) {
      if (ending == Ending::accumulate && out == DType::bf16) continue;
      expect_right({40, 64, 48, in, out, false, true, ending, 8});
      expect_right({33, 31, 20, in, out, true, false, ending, 1});
    }
  // Half of the largest workspace holds 2048 whole rows of 2000 sums: three parts.
  for (const bool trans_a : {false, true}) {
    products = 0;
    expect_right({4200, 2000, 8, DType::bf16, DType::bf16, trans_a, false, Ending::all, 0});
    EXPECT_GE(products, 3);
  }
}

TEST_F(Products, PlansAreMadeOncePerShapeAndAlignment) {
  const int& heuristics = emulator::blas().heuristics;
  Problem problem({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8});
  for (int i = 0; i < 3; ++i) run(machine.ex, problem.op);
  EXPECT_EQ(heuristics, 1);
  problem.expect_result();
  Problem other({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::none, 8});
  run(machine.ex, other.op);
  EXPECT_EQ(heuristics, 2);
  other.expect_result();
  other.op.c = other.op.c.row_range(0, 12);
  other.op.a = other.op.a.row_range(0, 12);
  run(machine.ex, other.op);
  EXPECT_EQ(heuristics, 3);
}

TEST_F(Products, TuningTableNamesTheAlgorithm) {
  Problem problem({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8});
  const GemmCandidates found = gemm_candidates(machine.ex, problem.op, 8);
  ASSERT_EQ(found.algorithms.size(), 2u);
  EXPECT_NE(found.algorithms[0].algorithm, found.algorithms[1].algorithm);
  GemmTuning tuning{"emulated", product_path(*machine.device, DType::bf16), {}};
  EXPECT_EQ(tuning.made_with, "cuBLASLt 13.1.0");
  for (const size_t choice : {1, 0}) {
    tuning.products[found.product] = found.algorithms[choice];
    use_gemm_tuning(*machine.device, parse_gemm_tuning(to_json(tuning)));
    run(machine.ex, problem.op);
    problem.expect_result();
    EXPECT_EQ(emulator::blas().algorithm, static_cast<int>(choice));
  }
  // Words that are no algorithm of this library: the heuristic decides.
  tuning.products[found.product].algorithm.fill(7);
  use_gemm_tuning(*machine.device, tuning);
  run(machine.ex, problem.op);
  problem.expect_result();
  EXPECT_EQ(emulator::blas().algorithm, 0);

  tuning.made_with = "cuBLASLt 12.0.0";
  EXPECT_THROW(use_gemm_tuning(*machine.device, tuning), Error);
  EXPECT_TRUE(gemm_candidates(machine.ex, Problem({4, 4, 0, DType::f32, DType::f32}).op, 8).algorithms.empty());
}

TEST_F(Products, MeasuringKeepsTheFastestOfEachProduct) {
  Problem first({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8}),
      second({40, 24, 16, DType::f32, DType::f32, false, false, Ending::accumulate, 8});
  measure_gemms(*machine.device, 8, 3);
  for (int i = 0; i < 2; ++i) {  // the second time by what was found
    run(machine.ex, first.op);
    run(machine.ex, second.op);
  }
  EXPECT_EQ(products, 2 * 2 * 4 * 5 + 4) << "two products, two algorithms, four rounds of five; then each twice";
  const MeasuredGemms measured = measured_gemms(*machine.device);
  EXPECT_EQ(measured.tuning.device, machine.device->gpu().name);
  EXPECT_EQ(measured.tuning.made_with, product_path(*machine.device, DType::bf16));
  ASSERT_EQ(measured.tuning.products.size(), 2u);
  for (const auto& [name, product] : measured.tuning.products) {
    EXPECT_GT(product.microseconds, 0) << name;
    EXPECT_LE(product.microseconds, measured.favourites.at(name)) << name;
  }
  // The table is taken again after a way through its file, and names what was fastest.
  const std::string name = gemm_candidates(machine.ex, first.op, 8).product;
  use_gemm_tuning(*machine.device, parse_gemm_tuning(to_json(measured.tuning)));
  Problem again({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8});
  run(machine.ex, again.op);
  again.expect_result();
  const auto candidates = gemm_candidates(machine.ex, first.op, 8).algorithms;
  EXPECT_EQ(candidates.at(static_cast<size_t>(emulator::blas().algorithm)).algorithm,
            measured.tuning.products.at(name).algorithm);
}

TEST_F(Products, MeasuringPassesOverWhatFails) {
  const GemmAlgorithm last = [&] {
    const Problem problem({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::none, 8});
    return gemm_candidates(machine.ex, problem.op, 8).algorithms.back().algorithm;
  }();
  emulator::blas().broken = 0;
  measure_gemms(*machine.device, 8, 1);
  expect_right({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::none, 8});
  const MeasuredGemms measured = measured_gemms(*machine.device);
  ASSERT_EQ(measured.tuning.products.size(), 1u);
  EXPECT_EQ(measured.tuning.products.begin()->second.algorithm, last);
}

TEST_F(Products, RefusesFp64ByName) {
  Problem problem({4, 4, 4, DType::f64, DType::f64});
  try {
    run(machine.ex, problem.op);
    FAIL() << "computed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    EXPECT_NE(std::string(error.what()).find("fp64"), std::string::npos) << error.what();
  }
}

TEST_F(Products, TokensThatDoNotExistGiveNan) {
  std::vector<int32_t> ids{1, -1, 3, 0};
  std::vector<float> table(3 * 4, 1.0f), y(4 * 4), logits(4 * 6);
  std::vector<double> loss(4);
  const auto tensor = [](auto& v, Shape shape) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), shape,
                  DTypeOf<typename std::remove_reference_t<decltype(v)>::value_type>::value, 0};
  };
  testing::run(machine.ex, EmbeddingForward{tensor(ids, {4}), tensor(table, {3, 4}), {}, tensor(y, {4, 4}), 0, 0});
  testing::run(machine.ex, CrossEntropy{tensor(logits, {4, 6}), tensor(ids, {4}), {}, tensor(loss, {4}), {}, 3, 1});
  for (size_t r = 0; r < 4; ++r) {
    const bool exists = r == 0 || r == 3;
    EXPECT_EQ(std::isnan(y[r * 4 + 2]), !exists) << r;
    EXPECT_EQ(std::isnan(loss[r]), !exists) << r;
  }
}

}  // namespace
}  // namespace trainer::ops
