#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "bench/attention.h"
#include "bench/elementwise.h"
#include "bench/experts.h"
#include "bench/gemm.h"
#include "bench/optimizer.h"
#include "rigs/tiny.h"
#include "setup/peak_windows.h"

namespace trainer::bench {
namespace {

struct Benchmarks : testing::Test {
  device::CpuDevice cpu{2};
  Arena arena{cpu, Arena::Mode::heap};
  Meter meter;
  Exec ex{cpu, arena, meter};
};

TEST_F(Benchmarks, MeasureEveryProductAndAPeakOfTheSameOrder) {
  const GemmShape shapes[] = {{192, 128, 160}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const auto rates = bench_gemm(ex, dtype, shapes, {.repeats = 3});
    ASSERT_EQ(rates.size(), 1u);
    setup::PeakWindows windows(cpu, dtype);
    std::vector<double> seen(20);
    windows.run(seen);
    const double peak = *std::max_element(seen.begin(), seen.end()) / 1e9;
    EXPECT_GT(peak, 1) << name_of(dtype);
    for (const double rate : {rates[0].forward, rates[0].dx, rates[0].dw}) {
      EXPECT_GT(rate, 0);
      EXPECT_LT(rate, 4 * peak) << "a rate above any clock change: one of the two counts FLOPs wrongly";
    }
  }
}

TEST_F(Benchmarks, ReportRatesOfBothPassesOfAttention) {
  const AttentionRate training = bench_attention(ex, DType::f32, {2, 40, 40, 0, 4, 2, 16}, {.repeats = 3});
  EXPECT_GT(training.forward_gflops, 0);
  EXPECT_GT(training.backward_gflops, 0);
  const AttentionRate decoding = bench_attention(ex, DType::bf16, {1, 1, 40, 64, 4, 2, 16, false, 39}, {.repeats = 3});
  EXPECT_GT(decoding.forward_gflops, 0);
  EXPECT_EQ(decoding.backward_seconds, 0);
}

TEST_F(Benchmarks, MeasureAdamWComparedWithItsTraffic) {
  const OptimizerRate rate = bench_optimizer(ex, std::vector<int64_t>{100000, 3}, 3);
  EXPECT_GT(rate.parameters_per_s, 0);
  EXPECT_NEAR(rate.gb_per_s, 28e-9 * rate.parameters_per_s, 1e-9 * rate.gb_per_s);
  EXPECT_GT(rate.share(), 0);
  EXPECT_GT(rate.copying_share(), 0);
  EXPECT_GT(rate.read_parameters_per_s, 0);
  EXPECT_GT(rate.bf16_moments_parameters_per_s, 0);
  EXPECT_EQ(meter.of(OpKind::optimizer).calls,
            24);  // 2 pieces, 4 iterations, 3 kinds: plain, with a copy, with bf16 moments
}

TEST_F(Benchmarks, MeasureOrthogonalizationComparedWithItsGemms) {
  const Shape shapes[] = {{48, 48}, {32, 96}, {96, 32}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const auto rates = bench_orthogonalize(ex, dtype, shapes, 3);
    ASSERT_EQ(rates.size(), 3u);
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_EQ(rates[i].shape, shapes[i]);
      EXPECT_GT(rates[i].share, 0);
      const double k = std::min(shapes[i][0], shapes[i][1]), n = std::max(shapes[i][0], shapes[i][1]);
      EXPECT_NEAR(rates[i].gflops * rates[i].seconds * 1e9, 20 * k * k * n + 10 * k * k * k, 1);
    }
  }
  EXPECT_EQ(meter.of(OpKind::orthogonalize).calls, 3 * 3 * 4 * 15);
  EXPECT_EQ(hidden_shapes(tests::tiny_config().model), (std::vector<Shape>{{24, 24}, {24, 40}, {40, 24}}));
  EXPECT_EQ(hidden_shapes(tests::tiny_config(config::Arch::llama).model),
            (std::vector<Shape>{{24, 24}, {24, 8}, {24, 40}, {40, 24}}));
}

TEST(BenchOptimizer, PiecesOfAModelAreItsRangesOfEqualDecay) {
  const config::Config c = tests::tiny_config();
  const setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32};
  config::Config with_vocabulary = c;
  with_vocabulary.data.vocab_size = tests::kTinyVocab;
  const std::vector<int64_t> pieces = update_pieces(with_vocabulary, machine);
  tests::Tiny run(c, DType::f32, 1);
  int64_t elements = 0;
  for (const params::Group& group : run.trainer.store().groups()) elements += group.held.count;
  EXPECT_EQ(std::accumulate(pieces.begin(), pieces.end(), int64_t{0}), elements);
  EXPECT_GT(pieces.size(), run.trainer.store().groups().size()) << "blocks have matrices and vectors";
}

TEST_F(Benchmarks, MeasureALayerWithExpertsAndItsGroupedGemms) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ExpertsTime time = bench_experts(ex, tests::tiny_experts(/*shared=*/true).model, dtype, 96, 3);
    EXPECT_GT(time.gemm_seconds, 0);
    EXPECT_LT(time.gemm_seconds, time.seconds);
    const GroupedRate rate = bench_grouped_gemm(ex, dtype, {64, 48, 32}, 4, 2);
    for (const double ratio : {rate.forward, rate.dx, rate.dw}) EXPECT_GT(ratio, 0);
  }
  config::Model model = tests::tiny_experts(/*shared=*/false).model;
  model.n_layer = 3, model.moe_every = 2, model.d_ff = 32;  // the last layer has no experts
  EXPECT_GT(bench_experts(ex, model, DType::f32, 96, 1).seconds, 0);
}

TEST_F(Benchmarks, MeasureEachOperatorComparedWithACopy) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const ElementwiseRates rates = bench_elementwise(ex, compute, 1 << 20, 3);
    EXPECT_GT(rates.copy_gb_per_s, 0);
    EXPECT_EQ(rates.operators.size(), compute == DType::bf16 ? 16u : 14u);
    for (const ElementwiseRate& rate : rates.operators) {
      EXPECT_GT(rate.seconds, 0) << rate.name;
      EXPECT_NEAR(rate.share * rates.copy_gb_per_s, rate.gb_per_s, 1e-9 * rate.gb_per_s) << rate.name;
      EXPECT_LT(rate.share, 20) << rate.name << " counts more bytes than it moves";
    }
  }
}

}  // namespace
}  // namespace trainer::bench
