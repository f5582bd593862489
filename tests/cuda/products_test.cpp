// GEMMs of a CUDA device with cuBLASLt: fused epilogues and those that run as built-in kernels, the cache of plans, and
// tuning tables; also operators with token ids out of range. All run on the emulated device, whose library counts its
// calls and can reject some.
#include <bit>

#include "base/log.h"
#include "cublasLt.h"
#include "ops/cross_entropy.h"
#include "ops/cuda/cublas_plan.h"
#include "ops/embedding.h"
#include "ops/gemm_tuning.h"
#include "unit/ops/gemm_problem.h"
#include "unit/ops/op_fixture.h"

namespace trainer::ops {
namespace {

using namespace gemm_test;

/// The name of op's GEMM (without activation and residual) in tuning tables, and the library's proposals for it.
struct Candidates {
  std::string product;
  std::vector<TunedProduct> algorithms;
};
Candidates candidates_of(const Gemm& op, int most) {
  constexpr int64_t kWorkspace = int64_t{1} << 20;
  cublasLtHandle_t library = nullptr;
  cuda::check(cublasLtCreate(&library), "cuBLASLt");
  const cuda::LtProduct product{op.a, op.b, op.c, op.c, op.trans_a, op.trans_b, 0, op.epilogue.bias, {}};
  cuda::LtPlan plan = cuda::described(product);
  Candidates found{cuda::name_of_product(product), {}};
  for (const auto& result : cuda::proposals(library, plan, product, kWorkspace, most, /*measured=*/true))
    found.algorithms.push_back(
        {std::bit_cast<GemmAlgorithm>(result.algo), static_cast<int64_t>(result.workspaceSize), 0});
  return found;
}

struct Products : ::testing::Test {
  Products() { emulator::blas() = {}; }
  ~Products() override { emulator::blas() = {}; }
  void expect_right(const Case& c) {
    Problem problem(c);
    if (c.ending == Ending::gradient) problem.allow_approximate_slope();
    run(machine.ex, problem.op);
    problem.expect_result();
  }
  Machine machine{1};
  int& products = emulator::blas().products;
};

TEST_F(Products, FusesWhatTheLibraryMeansAsWeDo) {
  // If everything is aligned, there is one call, followed by the activation at most.
  for (const auto& [in, out] : {std::pair{DType::bf16, DType::bf16}, {DType::f32, DType::f32}})
    for (const Ending ending : kEndings) {
      if (ending == Ending::accumulate && out == DType::bf16) continue;
      products = 0;
      const Case c{40, 64, 48, in, out, false, true, ending, 8};
      expect_right(c);
      EXPECT_EQ(products, 1) << text(c);
    }
}

TEST_F(Products, TheLibraryTakesTheGradientOfGeluWhereRowsAreAligned) {
  for (const int64_t n : {64, 600}) {
    Problem problem({40, n, 70, DType::bf16, DType::bf16, false, true, Ending::gradient, 8});
    measure_gemms(*machine.device, 8, 1, /*forms=*/false);
    run(machine.ex, problem.op);
    const GemmTuning tuning = measured_gemms(*machine.device).tuning;
    ASSERT_EQ(tuning.products.size(), 1u);
    EXPECT_NE(tuning.products.begin()->first.find(format("dgelu {}", n + 8)), std::string::npos);
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
  // Half of the largest workspace has space for 2048 rows of 2000 sums, so 4200 rows are computed in three parts.
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

TEST_F(Products, GroupsShareThePlansOfTheNextPowerOfTwo) {
  const int& heuristics = emulator::blas().heuristics;
  Problem problem({64, 40, 16, DType::bf16, DType::bf16});
  Problem weights({4 * 16, 40, 8, DType::bf16, DType::bf16});  // a matrix for each group
  testing::TestTensor dw({4 * 16, 40}, DType::f32);
  const auto multiply = [&](const std::vector<int64_t>& rows) {
    run(machine.ex, GroupedGemm{problem.op.a, weights.op.c, problem.op.c, rows});
    run(machine.ex, GroupedWeightGradient{problem.op.a, problem.op.c, dw, rows});
  };
  multiply({5, 8, 0, 7});
  EXPECT_EQ(heuristics, 2);
  multiply({6, 6, 6, 6});
  EXPECT_EQ(heuristics, 2);
  multiply({0, 9, 16, 12});
  EXPECT_EQ(heuristics, 4);
  Gemm alone = problem.op;  // has plans of its own, which a tuning table may name
  alone.a = alone.a.row_range(0, 8);
  alone.b = weights.op.c.row_range(0, 16);
  alone.c = alone.c.row_range(0, 8);
  run(machine.ex, alone);
  EXPECT_EQ(heuristics, 5);
}

TEST_F(Products, TuningTableNamesTheAlgorithm) {
  Problem problem({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8});
  const Candidates found = candidates_of(problem.op, 8);
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
  // Words that do not encode an algorithm of this library: the heuristic decides.
  tuning.products[found.product].algorithm.fill(7);
  use_gemm_tuning(*machine.device, tuning);
  run(machine.ex, problem.op);
  problem.expect_result();
  EXPECT_EQ(emulator::blas().algorithm, 0);

  tuning.made_with = "cuBLASLt 12.0.0";
  EXPECT_THROW(use_gemm_tuning(*machine.device, tuning), Error);
}

/// Collects the warnings that are logged during its lifetime.
struct Warnings {
  Warnings() {
    previous = log::set_sink([this](log::Level level, const std::string& line) {
      if (level == log::Level::warning) lines.push_back(line);
    });
  }
  ~Warnings() { log::set_sink(previous); }
  std::vector<std::string> lines;
  log::Sink previous;
};

TEST_F(Products, AnAlgorithmThatTheLibraryRejectsIsReplacedByTheNext) {
  emulator::blas().broken = 1;
  const Warnings warnings;
  const Case c{24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8};
  for (int i = 0; i < 3; ++i) {
    expect_right(c);
    EXPECT_EQ(emulator::blas().algorithm, 1);
  }
  EXPECT_EQ(products, 3);
  ASSERT_EQ(warnings.lines.size(), 1u) << "once for the product";
  EXPECT_EQ(warnings.lines[0],
            "cuBLASLt 13.1.0 rejected its own algorithm for GEMM 24x40x16 nt bf16->bf16 ld 24 24 48 48 bias "
            "(CUBLAS_STATUS_INVALID_VALUE); trying the next one");
}

TEST_F(Products, AnAlgorithmOfATableThatTheLibraryRejectsIsReplacedByItsProposals) {
  const Case c{24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8};
  Problem problem(c);
  const Candidates found = candidates_of(problem.op, 8);
  for (const GemmForm form : {GemmForm::as_is, GemmForm::left_first}) {
    GemmTuning tuning{"emulated", product_path(*machine.device, DType::bf16), {}};
    tuning.products[found.product] = found.algorithms[1];
    tuning.products[found.product].form = form;
    use_gemm_tuning(*machine.device, tuning);
    emulator::blas().broken = 2;
    const Warnings warnings;
    for (int i = 0; i < 2; ++i) expect_right(c);
    EXPECT_EQ(emulator::blas().algorithm, 0);
    EXPECT_EQ(warnings.lines.size(), 1u);
  }
}

TEST_F(Products, AProductWhoseAlgorithmsAreAllRejectedIsComputedInParts) {
  const Case c{24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8};
  emulator::blas().refuse_epilogues = true;
  const Warnings warnings;
  for (int i = 0; i < 2; ++i) expect_right(c);
  ASSERT_EQ(warnings.lines.size(), 1u);
  EXPECT_NE(warnings.lines[0].find("its epilogue runs as a separate kernel"), std::string::npos) << warnings.lines[0];
  emulator::blas().broken = 3;
  use_gemm_tuning(*machine.device, {});
  Problem problem({24, 40, 16, DType::bf16, DType::f32, false, true, Ending::none, 8});
  EXPECT_THROW(run(machine.ex, problem.op), Error);
}

TEST_F(Products, AGroupWhoseSharedPlanIsRejectedHasItsOwn) {
  const auto multiply = [&](Problem& problem) {
    const std::vector<int64_t> rows{problem.op.c.rows()};
    run(machine.ex, GroupedGemm{problem.op.a, problem.op.b, problem.op.c, rows});
  };
  Problem six({6, 40, 16, DType::f32, DType::f32}), five({5, 40, 16, DType::f32, DType::f32});
  const Warnings warnings;
  emulator::blas().broken = 3;
  EXPECT_THROW(multiply(six), Error);
  emulator::blas().broken = 0;
  multiply(five);
  five.expect_result();
  EXPECT_EQ(emulator::blas().heuristics, 3) << "for eight, six and five rows";
}

TEST_F(Products, AnErrorOfTheDeviceIsNotARejection) {
  emulator::blas().broken = 1;
  emulator::blas().failure = CUBLAS_STATUS_EXECUTION_FAILED;
  Problem problem({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8});
  EXPECT_THROW(run(machine.ex, problem.op), Error);
  EXPECT_EQ(products, 0) << "no other algorithm is tried";
}

TEST_F(Products, MeasuringKeepsTheFastestOfEachProduct) {
  Problem first({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8}),
      second({40, 24, 16, DType::f32, DType::f32, false, false, Ending::accumulate, 8});
  measure_gemms(*machine.device, 8, 3, /*forms=*/false);
  for (int i = 0; i < 2; ++i) {  // the second time with the measured algorithms
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
  // The table, written as JSON and read back, is accepted, and names the fastest algorithm.
  const std::string name = candidates_of(first.op, 8).product;
  use_gemm_tuning(*machine.device, parse_gemm_tuning(to_json(measured.tuning)));
  Problem again({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8});
  run(machine.ex, again.op);
  again.expect_result();
  const auto candidates = candidates_of(first.op, 8).algorithms;
  EXPECT_EQ(candidates.at(static_cast<size_t>(emulator::blas().algorithm)).algorithm,
            measured.tuning.products.at(name).algorithm);
}

TEST_F(Products, OnlyMeasuringAsksForMoreThanTheUsualAlgorithms) {
  for (const DType out : {DType::bf16, DType::f32})
    for (const bool measured : {false, true}) {
      SCOPED_TRACE(format("to {}, measured {}", name_of(out), measured));
      use_gemm_tuning(*machine.device, {});
      if (measured) measure_gemms(*machine.device, 8, 1, /*forms=*/false);
      expect_right({24, 40, 16, DType::bf16, out, false, true, Ending::none, 8});
      EXPECT_EQ(emulator::blas().schemes, measured && out == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                                        : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
      EXPECT_EQ(emulator::blas().alignment, 16u);
    }
}

TEST_F(Products, MeasuringPassesOverWhatFails) {
  const GemmAlgorithm last = [&] {
    const Problem problem({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::none, 8});
    return candidates_of(problem.op, 8).algorithms.back().algorithm;
  }();
  emulator::blas().broken = 1;
  measure_gemms(*machine.device, 8, 1, /*forms=*/false);
  expect_right({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::none, 8});
  const MeasuredGemms measured = measured_gemms(*machine.device);
  ASSERT_EQ(measured.tuning.products.size(), 1u);
  EXPECT_EQ(measured.tuning.products.begin()->second.algorithm, last);
}

// The bit of Blas::slow_ways for one form of a GEMM; the test makes all other forms slow.
constexpr unsigned bit(bool trans_a, bool trans_b) { return 1u << (2 * trans_a + trans_b); }

TEST_F(Products, TablesNameTheFormThatWasFastest) {
  for (const auto& [in, out] : {std::pair{DType::bf16, DType::bf16}, {DType::f32, DType::f32}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const GemmForm form : {GemmForm::left_first, GemmForm::right_first, GemmForm::as_is})
          for (const Ending ending : {Ending::bias, Ending::accumulate, Ending::gradient}) {
            if (ending == Ending::accumulate && out == DType::bf16) continue;
            const Case c{24, 40, 16, in, out, ta, tb, ending, 8};
            SCOPED_TRACE(format("{}, {}", text(c), name_of(form)));
            const bool fast_a = ta != (form == GemmForm::left_first), fast_b = tb != (form == GemmForm::right_first);
            const int fast = 2 * fast_a + fast_b;
            emulator::blas() = {};
            emulator::blas().slow_ways = 0xf & ~bit(fast_a, fast_b);
            measure_gemms(*machine.device, 8, 1, /*forms=*/true);
            Problem meanwhile(c);
            run(machine.ex, meanwhile.op);
            EXPECT_EQ(emulator::blas().way, fast) << "from then on";
            const GemmTuning tuning = measured_gemms(*machine.device).tuning;
            ASSERT_EQ(tuning.products.size(), 1u);
            EXPECT_EQ(tuning.products.begin()->second.form, form);
            use_gemm_tuning(*machine.device, parse_gemm_tuning(to_json(tuning)));
            products = 0;
            expect_right(c);
            EXPECT_EQ(emulator::blas().way, fast);
            EXPECT_EQ(products, 1) << "nothing is measured in a run";
          }
}

TEST_F(Products, AFormThatGainsLessThanItsMemoryIsWorthIsNotTaken) {
  measure_gemms(*machine.device, 8, 1, /*forms=*/true);  // all forms are equally fast, and copies take time
  expect_right({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8});
  EXPECT_EQ(measured_gemms(*machine.device).tuning.products.begin()->second.form, GemmForm::as_is);
}

TEST_F(Products, CopiesOfOperandsAreScratchThatADryDevicePlans) {
  const Case c{24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::bias, 8};
  Problem problem(c);
  Candidates found = candidates_of(problem.op, 1);
  const std::unique_ptr<device::Device> dry = device::make_dry(*machine.device);
  const auto planned = [&] {
    Arena arena(*dry);
    Exec ex{*dry, arena, machine.meter};
    arena.record("product", [&] { run(ex, static_cast<const Gemm&>(problem.op)); });
    int64_t bytes = 0;
    for (const Arena::Interval& interval : arena.programs().at("product").intervals)
      if (interval.tag == "gemm.transposed") bytes += interval.bytes;
    return bytes;
  };
  const int64_t left = 16 * 24 * 2, right = 16 * 40 * 2;  // a [24, 16]: rows of 24; b [40, 16]: rows of 40
  for (const auto& [form, bytes] :
       {std::pair{GemmForm::as_is, int64_t{0}}, {GemmForm::left_first, left}, {GemmForm::right_first, right}}) {
    TunedProduct tuned = found.algorithms.front();
    tuned.form = form;
    use_gemm_tuning(*machine.device, {machine.device->gpu().name, "cuBLASLt 13.1.0", {{found.product, tuned}}});
    EXPECT_EQ(planned(), round_up(bytes, dry->alignment())) << name_of(form);
    expect_right(c);
  }
  measure_gemms(*machine.device, 8, 1, /*forms=*/true);
  EXPECT_EQ(planned(), round_up(right, dry->alignment())) << "the larger operand";
  measure_gemms(*machine.device, 8, 1, /*forms=*/false);
  EXPECT_EQ(planned(), 0);
  measured_gemms(*machine.device);

  // Rows of the copy start at multiples of 16 bytes even if they have an odd number of elements.
  const Case odd{33, 31, 20, DType::f32, DType::f32, true, false, Ending::bias, 1};
  Problem uneven(odd);
  found = candidates_of(uneven.op, 1);
  for (const GemmForm form : {GemmForm::left_first, GemmForm::right_first}) {
    found.algorithms.front().form = form;
    use_gemm_tuning(*machine.device,
                    {machine.device->gpu().name, "cuBLASLt 13.1.0", {{found.product, found.algorithms.front()}}});
    expect_right(odd);
    EXPECT_EQ(emulator::blas().way, form == GemmForm::left_first ? 0 : 3);
  }
}

TEST_F(Products, PartsOfAProductAreTakenAsTheyAre) {
  // The table has a form for a GEMM that is also a part of a different GEMM.
  const Case part{24, 40, 16, DType::bf16, DType::f32, false, true, Ending::none, 0};
  Problem plain(part);
  Candidates found = candidates_of(plain.op, 1);
  ASSERT_EQ(found.algorithms.size(), 1u);
  found.algorithms.front().form = GemmForm::left_first;
  use_gemm_tuning(*machine.device,
                  {machine.device->gpu().name, "cuBLASLt 13.1.0", {{found.product, found.algorithms.front()}}});
  expect_right(part);
  EXPECT_EQ(emulator::blas().way, 3);
  expect_right({24, 40, 16, DType::bf16, DType::bf16, false, true, Ending::all, 0});
  EXPECT_EQ(emulator::blas().way, 1);
}

TEST_F(Products, RejectsFp64ByName) {
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
  testing::run(machine.ex, CrossEntropy{tensor(logits, {4, 6}), tensor(ids, {4}), {}, tensor(loss, {4}), {}, 3});
  for (size_t r = 0; r < 4; ++r) {
    const bool exists = r == 0 || r == 3;
    EXPECT_EQ(std::isnan(y[r * 4 + 2]), !exists) << r;
    EXPECT_EQ(std::isnan(loss[r]), !exists) << r;
  }
}

}  // namespace
}  // namespace trainer::ops
