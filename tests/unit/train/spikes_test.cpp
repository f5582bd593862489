#include "train/spikes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rigs/tiny.h"

namespace trainer::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Spikes, TheLimitIsTheMeanPlusSigmaStandardDeviations) {
  std::vector<double> values;
  for (int i = 1; i <= 63; ++i) values.push_back(i);
  EXPECT_EQ(spike_limit(values, 6), kInfinity) << "63 values are too few";
  values.push_back(64);
  // The mean of 1 to n is (n + 1)/2, their variance n(n + 1)/12 with n − 1 in its denominator.
  EXPECT_NEAR(spike_limit(values, 6), 32.5 + 6 * std::sqrt(64 * 65 / 12.0), 1e-12);
  EXPECT_NEAR(spike_limit(values, 1), 32.5 + std::sqrt(64 * 65 / 12.0), 1e-12);
  EXPECT_EQ(spike_limit(std::vector<double>(100, 3.5), 6), kInfinity) << "equal values";
}

TEST(Spikes, TheHistoryHasTheLastFiniteValues) {
  std::vector<double> values;
  for (int i = 0; i < 70; ++i) remember(values, i % 7 == 3 ? std::nan("") : i, 64);
  remember(values, kInfinity, 64);
  EXPECT_EQ(values.size(), 60u);
  for (int i = 70; i < 75; ++i) remember(values, i, 64);
  ASSERT_EQ(values.size(), 64u);
  EXPECT_EQ(values.front(), 1) << "the oldest value was dropped";
  EXPECT_EQ(values.back(), 74);
}

/// Returns 64 values around `mean` whose standard deviation is close to `deviation`.
std::vector<double> around(double mean, double deviation) {
  std::vector<double> values;
  for (int i = 0; i < 64; ++i) values.push_back(mean + (i % 2 == 0 ? deviation : -deviation));
  return values;
}

class SkippedSpikes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Replicas, SkippedSpikes, ::testing::Values(1, 2, 3));

TEST_P(SkippedSpikes, ChangeNothingOnAnyRank) {
  const int ranks = GetParam();
  config::Config c = tests::tiny_config();
  c.parallel.data = ranks;
  // With three replicas, a step has one micro-batch, so gradients are in the arena; otherwise it has two.
  c.train.global_batch = (ranks == 3 ? 1 : 2) * ranks * c.train.micro_batch;
  c.train.skip_sigma = 6;
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    tests::Tiny run(&world, c, DType::f32, 1);
    const auto step = [&](int64_t n, const std::vector<double>& losses, const std::vector<double>& norms) {
      return run.trainer.step({.step = n,
                               .first_sample = 0,
                               .adam_step = n,
                               .micro_batches = run.trainer.accumulation(),
                               .lr = 1e-3,
                               .losses = losses,
                               .norms = norms},
                              run.batches);
    };
    const Trainer::Outcome first = step(1, {}, {});
    ASSERT_FALSE(first.skipped);
    const std::vector<std::byte> before = run.state();
    const double loss = first.loss, norm = first.norm.norm;
    Trainer::Outcome outcome = step(2, around(0.5 * loss, 1e-3), around(norm, norm));
    EXPECT_TRUE(outcome.skipped);
    ASSERT_TRUE(outcome.spike);
    EXPECT_EQ(outcome.spike->what, "the loss");
    EXPECT_NEAR(outcome.spike->limit, 0.5 * loss + 6e-3 * std::sqrt(64.0 / 63), 1e-12);
    outcome = step(2, around(loss, loss), around(0.1 * norm, 1e-3 * norm));
    ASSERT_TRUE(outcome.spike);
    EXPECT_EQ(outcome.spike->what, "the gradient norm");
    EXPECT_EQ(run.state(), before) << "a skipped step changes no state";
    EXPECT_FALSE(step(2, around(10 * loss, 1e-3), around(norm, norm)).skipped) << "a fall is no spike";
    EXPECT_NE(run.state(), before);
    config::Config off = c;
    off.train.skip_sigma = 0;
    tests::Tiny usual(&world, off, DType::f32, 1);
    EXPECT_FALSE(usual.trainer
                     .step({.step = 1,
                            .adam_step = 1,
                            .micro_batches = usual.trainer.accumulation(),
                            .lr = 1e-3,
                            .losses = around(0, 1e-3),
                            .norms = around(0, 1e-3)},
                           usual.batches)
                     .skipped);
  });
}

}  // namespace
}  // namespace trainer::train
