#include "run/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace trainer::run {
namespace {

config::Optim make(config::Schedule schedule, int64_t warmup, double decay_fraction = 0.2) {
  config::Optim optim;
  optim.lr = 1e-3;
  optim.min_lr = 1e-4;
  optim.warmup_steps = warmup;
  optim.schedule = schedule;
  optim.decay_fraction = decay_fraction;
  return optim;
}

constexpr config::Schedule kAll[] = {config::Schedule::cosine, config::Schedule::linear, config::Schedule::wsd,
                                     config::Schedule::constant};

TEST(Schedule, WarmsUpLinearlyAndReachesTheFullRateAtItsLastStep) {
  for (const config::Schedule schedule : kAll) {
    const config::Optim optim = make(schedule, 10);
    EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 1), 1e-4);
    EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 7), 7e-4);
    EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 10), 1e-3);
    EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 11), 1e-3);  // the first step after it has p = 0
  }
}

TEST(Schedule, StartsAtTheFullRateWithoutWarmUp) {
  for (const config::Schedule schedule : kAll) EXPECT_DOUBLE_EQ(learning_rate(make(schedule, 0), 100, 1), 1e-3);
}

TEST(Schedule, CosineHasItsClosedForm) {
  const config::Optim optim = make(config::Schedule::cosine, 10);
  EXPECT_NEAR(learning_rate(optim, 100, 56), 5.5e-4, 1e-18);              // p = 45/90: the middle
  EXPECT_NEAR(learning_rate(optim, 100, 41), 1e-4 + 9e-4 * 0.75, 1e-18);  // p = 1/3: (1 + cos 60°) / 2
  const double last = 1e-4 + 9e-4 * 0.5 * (1 + std::cos(std::numbers::pi * 89 / 90));
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 100), last);
  EXPECT_GT(last, 1e-4);
}

TEST(Schedule, LinearHasItsClosedForm) {
  const config::Optim optim = make(config::Schedule::linear, 10);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 56), 5.5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 100), 1e-3 - 9e-4 * 89 / 90);
}

TEST(Schedule, WsdStaysThenFallsOverItsLastShare) {
  const config::Optim optim = make(config::Schedule::wsd, 10, 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 80), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 81), 1e-3);  // first decaying step: p = 0
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 82), 1e-3 - 9e-4 / 20);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 91), 5.5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 100), 1e-3 - 9e-4 * 19 / 20);
}

TEST(Schedule, WsdMayFallByTheRootOfItsShare) {
  config::Optim optim = make(config::Schedule::wsd, 10, 0.2);
  optim.lr = 1;
  optim.min_lr = 0.1;
  optim.decay_shape = config::DecayShape::sqrt;
  EXPECT_EQ(learning_rate(optim, 100, 81), 1);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 82), 0.79875388202501896);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 90), 0.39626164607505676);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 100, 100), 0.12278850896719329);
  EXPECT_EQ(learning_rate(optim, 100, 101), 0.1);
  config::Optim linear = make(config::Schedule::linear, 10);
  linear.decay_shape = config::DecayShape::sqrt;  // wsd only
  EXPECT_DOUBLE_EQ(learning_rate(linear, 100, 56), 5.5e-4);
}

TEST(Schedule, WsdDecaysForTheStatedSteps) {
  config::Optim steps = make(config::Schedule::wsd, 10, 0.9);
  steps.decay_steps = 20;
  const config::Optim fraction = make(config::Schedule::wsd, 10, 0.2);
  for (int64_t step = 1; step <= 110; ++step)
    EXPECT_EQ(learning_rate(steps, 100, step), learning_rate(fraction, 100, step)) << step;
  steps.decay_steps = 1000;  // bounded by the warm-up
  EXPECT_EQ(learning_rate(steps, 100, 56), learning_rate(make(config::Schedule::wsd, 10, 1.0), 100, 56));
}

TEST(Schedule, WsdDecayIsBoundedByTheWarmUpAndMayBeAbsent) {
  const config::Optim whole = make(config::Schedule::wsd, 10, 1.0), linear = make(config::Schedule::linear, 10);
  for (int64_t step = 1; step <= 110; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate(whole, 100, step), learning_rate(linear, 100, step)) << step;
  }
  EXPECT_DOUBLE_EQ(learning_rate(make(config::Schedule::wsd, 10, 0.0), 100, 100), 1e-3);
}

TEST(Schedule, StaysAtTheMinimumBeyondTheRunUnlessConstant) {
  for (const config::Schedule schedule : kAll) {
    const double expected = schedule == config::Schedule::constant ? 1e-3 : 1e-4;
    EXPECT_DOUBLE_EQ(learning_rate(make(schedule, 10), 100, 101), expected);
    EXPECT_DOUBLE_EQ(learning_rate(make(schedule, 10), 100, 1'000'000), expected);
  }
}

TEST(Schedule, NeverRisesAfterTheWarmUpAndStaysWithinItsBounds) {
  for (const config::Schedule schedule : kAll) {
    const config::Optim optim = make(schedule, 7, 0.33);
    double previous = optim.lr;
    for (int64_t step = 8; step <= 120; ++step) {
      const double lr = learning_rate(optim, 101, step);
      EXPECT_LE(lr, previous);
      EXPECT_GE(lr, optim.min_lr);
      previous = lr;
    }
  }
}

TEST(Schedule, ServesRunsOfOneStepAndRunsShorterThanTheWarmUp) {
  for (const config::Schedule schedule : kAll) {
    EXPECT_DOUBLE_EQ(learning_rate(make(schedule, 0), 1, 1), 1e-3);
    EXPECT_DOUBLE_EQ(learning_rate(make(schedule, 1), 1, 1), 1e-3);
    EXPECT_DOUBLE_EQ(learning_rate(make(schedule, 50), 4, 1), 2.5e-4);  // the warm-up is shortened to the run
    EXPECT_DOUBLE_EQ(learning_rate(make(schedule, 50), 4, 4), 1e-3);
  }
}

TEST(Schedule, RejectsStepZero) { EXPECT_THROW(learning_rate(make(config::Schedule::cosine, 0), 10, 0), Error); }

}  // namespace
}  // namespace trainer::run
