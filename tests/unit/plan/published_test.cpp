// Published figures: AxoNN's model of communication, and counts of Narayanan et al. 2021 and Korthikanti et al. 2022.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "reference/axonn_model.h"
#include "reference/gpt_formulas.h"

namespace trainer::plan {
namespace {

using axonn::Bandwidths;
using axonn::Mode;

Bandwidths perlmutter(double between) { return {4, {{{1, 2}, 76}, {{1, 4}, 225}, {{2, 2}, 76}}, between}; }
Bandwidths frontier(double between) {
  return {8, {{{1, 2}, 129}, {{1, 4}, 52}, {{1, 8}, 135}, {{2, 2}, 50}, {{2, 4}, 72}, {{4, 2}, 36}}, between};
}

// The first public script has 80 and 40 GiB/s between nodes, the second 59.52 and 109.98.
TEST(AxonnModel, GivesWhatThePublicScriptGives) {
  struct Golden {
    axonn::Grid grid;
    double script, exact;
  };
  const axonn::Problem b20{.layers = 32, .hidden = 7168, .batch = 256},
      b80{.layers = 42, .hidden = 12288, .batch = 8192};
  for (const Golden& g : {Golden{{1, 1, 32, 1}, 1.3351, 1.7944},
                          {{4, 1, 8, 1}, 3.4459, 2.7408},
                          {{1, 4, 8, 1}, 4.1925, 5.1674},
                          {{2, 2, 4, 2}, 6.4212, 6.3032},
                          {{4, 2, 2, 2}, 16.1216, 12.7395},
                          {{2, 4, 2, 2}, 11.9609, 9.9636}}) {
    EXPECT_NEAR(axonn::seconds(b20, g.grid, perlmutter(80), Mode::script), g.script, 1e-3 * g.script);
    EXPECT_NEAR(axonn::seconds(b20, g.grid, perlmutter(59.52), Mode::exact), g.exact, 1e-3 * g.exact);
  }
  for (const Golden& g : {Golden{{1, 1, 1024, 8}, 10.7178, 3.8981},
                          {{2, 1, 512, 8}, 11.0737, 4.0774},
                          {{8, 1, 128, 8}, 13.0951, 5.0966},
                          {{4, 2, 128, 8}, 13.1022, 5.4360},
                          {{8, 8, 16, 8}, 70.7594, 16.3970}}) {
    EXPECT_NEAR(axonn::seconds(b80, g.grid, frontier(40), Mode::script), g.script, 1e-3 * g.script);
    EXPECT_NEAR(axonn::seconds(b80, g.grid, frontier(109.98), Mode::exact), g.exact, 1e-3 * g.exact);
  }
}

TEST(AxonnModel, SharesTheLinkOfANode) {
  const Bandwidths p = perlmutter(59.52);
  EXPECT_EQ(p.of(1, 4), 225);
  EXPECT_EQ(p.of(2, 2), 76);
  EXPECT_EQ(p.of(1, 8), 59.52);
  EXPECT_EQ(p.of(2, 4), 59.52 / 2);
  EXPECT_EQ(p.of(4, 2), 59.52 / 4);
  EXPECT_EQ(p.of(64, 16), 59.52 / 4);
  EXPECT_THROW(p.of(1, 3), Error);
}

TEST(AxonnModel, RanksGridsAsPublished) {
  const axonn::Problem b20{.layers = 32, .hidden = 7168, .batch = 128},
      b80{.layers = 42, .hidden = 12288, .batch = 512};
  const auto expect = [](const std::vector<axonn::Ranked>& all, std::vector<axonn::Ranked> first) {
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(all[i].grid, first[i].grid) << "place " << i;
      EXPECT_NEAR(all[i].seconds, first[i].seconds, 1e-3 * first[i].seconds) << "place " << i;
    }
  };
  const auto script20 = axonn::rank_grids(b20, 256, 16, perlmutter(80), Mode::script);
  EXPECT_EQ(script20.size(), 140u);
  expect(script20, {{{2, 4, 32, 1}, 1.3792}, {{2, 4, 16, 2}, 1.3864}});
  expect(axonn::rank_grids(b20, 256, 16, perlmutter(59.52), Mode::exact),
         {{{2, 4, 32, 1}, 1.4717}, {{2, 4, 16, 2}, 1.4814}, {{2, 4, 8, 4}, 1.5006}, {{8, 1, 32, 1}, 1.5147}});
  const auto script80 = axonn::rank_grids(b80, 1024, 64, perlmutter(80), Mode::script);
  EXPECT_EQ(script80.size(), 225u);
  expect(script80, {{{2, 4, 128, 1}, 4.2383}});
  expect(axonn::rank_grids(b80, 1024, 64, perlmutter(59.52), Mode::exact),
         {{{4, 4, 64, 1}, 4.6386}, {{4, 4, 32, 2}, 4.6479}});
}

struct Row {
  double billions, hidden, layers, gpus, batch, tflops, seconds;
};
constexpr Row kSelene[] = {{1.7, 2304, 24, 32, 512, 137, 3.53},         {3.6, 3072, 30, 64, 512, 138, 3.70},
                           {7.5, 4096, 36, 128, 512, 142, 3.70},        {18.4, 6144, 40, 256, 1024, 135, 9.40},
                           {39.1, 8192, 48, 512, 1536, 138, 14.45},     {76.1, 10240, 60, 1024, 1792, 140, 16.06},
                           {145.6, 12288, 80, 1536, 2304, 148, 24.82},  {310.1, 16384, 96, 1920, 2160, 155, 37.61},
                           {529.6, 20480, 105, 2520, 2520, 163, 54.08}, {1008.0, 25600, 128, 3072, 3072, 163, 102.6}};

TEST(GptFormulas, GiveThePublishedSizesAndTimes) {
  for (const Row& row : kSelene) {
    const gpt::Shape shape{.layers = row.layers, .hidden = row.hidden, .heads = 1, .seq = 2048, .vocab = 51200};
    EXPECT_NEAR(gpt::parameters(shape) * 1e-9, row.billions, 0.05);
    EXPECT_NEAR(gpt::recomputed_flops(shape, row.batch) / (row.gpus * row.tflops * 1e12), row.seconds,
                2e-3 * row.seconds);
  }
}

// Days of 300 billion tokens from TFLOP/s of a GPU, tables 1 and 2: 175B (h 12288, 96 layers) and 530B (h 20480, 105).
TEST(GptFormulas, GiveThePublishedDays) {
  struct Days {
    double hidden, layers, gpus, tflops, days;
  };
  for (const Days& d : {Days{12288, 96, 384, 153, 84},
                        {12288, 96, 768, 149, 43},
                        {12288, 96, 1536, 141, 23},
                        {20480, 105, 560, 171, 156},
                        {20480, 105, 1120, 167, 80},
                        {20480, 105, 2240, 159, 42},
                        {12288, 96, 384, 144, 90},
                        {12288, 96, 768, 88, 74},
                        {12288, 96, 1536, 44, 74},
                        {20480, 105, 640, 138, 169},
                        {20480, 105, 1120, 98, 137},
                        {20480, 105, 2240, 48, 140}}) {
    const gpt::Shape shape{.layers = d.layers, .hidden = d.hidden, .heads = 1, .seq = 2048, .vocab = 51200};
    const double flops = gpt::recomputed_flops(shape, 1) / 2048 * 300e9;
    EXPECT_NEAR(flops / (d.gpus * d.tflops * 1e12) / 86400, d.days, 1.1);
  }
}

struct Model {
  double hidden, layers, heads, gpus, batch, seconds, mfu, tensor = 8;
  double sp, selective, both, full;
};
constexpr Model kRecompute[] = {{6144, 48, 64, 8, 4, 1.10, 41.5, 8, 66.84, 49.42, 16.18, 7.64},
                                {12288, 96, 96, 64, 64, 13.75, 51.4, 8, 62.04, 56.53, 18.49, 8.71},
                                {20480, 105, 128, 280, 280, 37.83, 56.0, 8, 58.31, 62.04, 20.27, 9.42}};

TEST(GptFormulas, GiveThePublishedUtilisationAndMemory) {
  for (const Model& m : kRecompute) {
    const gpt::Shape shape{.layers = m.layers, .hidden = m.hidden, .heads = m.heads, .seq = 2048, .vocab = 51200};
    EXPECT_NEAR(100 * gpt::model_flops(shape, m.batch) / (m.seconds * m.gpus * 312e12), m.mfu, 0.3);
    const auto share = [&](bool sp, gpt::Recompute recompute) {
      return 100 * gpt::activation_bytes(shape, 1, m.tensor, sp, recompute) /
             gpt::activation_bytes(shape, 1, m.tensor, false, gpt::Recompute::none);
    };
    EXPECT_NEAR(share(true, gpt::Recompute::none), m.sp, 0.3);
    EXPECT_NEAR(share(false, gpt::Recompute::selective), m.selective, 0.3);
    EXPECT_NEAR(share(true, gpt::Recompute::selective), m.both, 0.3);
    EXPECT_NEAR(share(false, gpt::Recompute::full), m.full, 0.3);
  }
  const gpt::Shape b22{.layers = 48, .hidden = 6144, .heads = 64, .seq = 2048, .vocab = 51200};
  const gpt::Shape trillion{.layers = 128, .hidden = 25600, .heads = 160, .seq = 2048, .vocab = 51200};
  EXPECT_NEAR(100 * gpt::model_flops(trillion, 512) / (71.49 * 512 * 312e12), 56.3, 0.3);
  constexpr double kGib = 1 << 30;
  EXPECT_NEAR(12 * b22.hidden * b22.hidden * b22.layers / 8 * 18 / kGib, 45.5625, 1e-9);
  EXPECT_NEAR(48 * gpt::activation_bytes(b22, 4, 8, false, gpt::Recompute::none) / kGib, 59.25, 1e-9);
  EXPECT_NEAR(48 * gpt::activation_bytes(b22, 4, 8, true, gpt::Recompute::selective) / kGib, 9.5625, 1e-9);
}

}  // namespace
}  // namespace trainer::plan
