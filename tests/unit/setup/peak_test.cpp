#include "setup/peak.h"
#include "config/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "config/flops.h"
#include "rigs/messages.h"

namespace trainer::setup {
namespace {

/// Windows of a machine with given rates, in TFLOP/s; each takes a millisecond of its clock.
struct Machinery {
  double now = 100;
  std::vector<double> rates;
  size_t next = 0;
  int calls = 0;

  PeakTracker tracker() {
    return {"unit",
            [this](std::span<double> out) {
              ++calls;
              for (double& rate : out) {
                rate = rates[next++ % rates.size()] * 1e12;
                now += 1e-3;
              }
            },
            [this] { return now; }};
  }
};

TEST(Peak, IsTheBestOfAllWindowsAndReportsTheirSpread) {
  Machinery machine{.rates = {0.5, 0.25, 0.75, 0.5}};
  PeakTracker peak = machine.tracker();
  EXPECT_TRUE(std::isnan(peak.flops()));
  peak.measure(4);
  EXPECT_EQ(peak.flops(), 0.75e12);
  machine.rates = {1.0, 0.125};
  peak.measure(2);
  machine.rates = {0.25};
  peak.measure(1);  // a slower one does not lower it
  const PeakReport report = peak.report();
  EXPECT_EQ(report.flops, 1e12);
  EXPECT_EQ(report.origin, "measured");
  EXPECT_EQ(report.unit, "unit");
  EXPECT_EQ(report.windows, 7);
  EXPECT_EQ(report.median_flops, 0.5e12);
  EXPECT_EQ(report.lowest_flops, 0.125e12);
  EXPECT_EQ(report.raised_by, "");
}

TEST(Peak, SamplesTakeTheirShareOfTheRunAndNoMore) {
  Machinery machine{.rates = {1}};
  PeakTracker peak = machine.tracker();
  peak.measure();
  const double started = machine.now;
  EXPECT_FALSE(peak.is_due());
  // Steps of 50 ms: 4 windows of 1 ms are due for every 2 seconds.
  double measuring = 0;
  for (int step = 1; step <= 400; ++step) {
    machine.now += 0.05;
    if (!peak.is_due()) continue;
    const double before = machine.now;
    peak.sample();
    measuring += machine.now - before;
    EXPECT_FALSE(peak.is_due()) << "twice at step " << step;
  }
  EXPECT_LE(measuring, PeakTracker::kShare * (machine.now - started + 1e-3 * PeakTracker::kAtStart));
  EXPECT_GE(measuring, 0.85 * PeakTracker::kShare * (machine.now - started));
  // A long run stops requesting samples.
  machine.now += 1e6;
  for (int step = 0; step < 100'000 && peak.is_due(); ++step) {
    const double before = machine.now;
    peak.sample();
    measuring += machine.now - before;
  }
  EXPECT_FALSE(peak.is_due());
  EXPECT_LE(measuring, PeakTracker::kMostSeconds);
  EXPECT_GT(measuring, 0.95 * PeakTracker::kMostSeconds);
}

TEST(Peak, ASampleThatWasDisturbedIsPaidForBeforeTheNext) {
  Machinery machine{.rates = {1}};
  double slow = 0;  // seconds lost in every measurement
  PeakTracker peak(
      "unit",
      [&](std::span<double> out) {
        std::fill(out.begin(), out.end(), 1e12);
        machine.now += 1e-3 * static_cast<double>(out.size()) + slow;
      },
      [&] { return machine.now; });
  slow = 0.5;
  EXPECT_NEAR(peak.measure(), 0.5 + 1e-3 * PeakTracker::kAtStart, 1e-9);
  slow = 0;
  EXPECT_NEAR(peak.measure(), 1e-3 * PeakTracker::kAtStart, 1e-9);
  machine.now += 3;
  EXPECT_TRUE(peak.is_due()) << "start-up is not charged, and its slow measurement no measure of the next";
  slow = 0.02;
  peak.sample();
  machine.now += 9;
  EXPECT_FALSE(peak.is_due()) << "24 ms are two thousandths of 12 s, and the next needs 4 more";
  machine.now += 3;
  EXPECT_TRUE(peak.is_due());
}

TEST(Peak, IsRaisedByWhatWasReachedAndReportsItOnce) {
  Machinery machine{.rates = {1}};
  PeakTracker peak = machine.tracker();
  peak.measure(3);
  EXPECT_EQ(peak.raise_to_rate(0.9e12, "the products of step 1"), "");
  EXPECT_EQ(peak.raise_to_rate(std::nan(""), "nothing"), "");
  EXPECT_EQ(peak.flops(), 1e12);
  tests::expect_parts(peak.raise_to_rate(1.25e12, "the products of step 2"),
                      {"the products of step 2", "1.25 TFLOP/s", "the peak of 1 ", "3 windows"});
  EXPECT_EQ(peak.flops(), 1.25e12);
  EXPECT_EQ(peak.report().raised_by, "the products of step 2");
  EXPECT_EQ(peak.raise_to_rate(1.5e12, "the whole of step 3"), "");  // raised again, without a message
  EXPECT_EQ(peak.report().flops, 1.5e12);
  EXPECT_EQ(peak.report().raised_by, "the whole of step 3");
  machine.rates = {2};
  peak.measure(1);  // a window that exceeds the raised peak
  EXPECT_EQ(peak.report().flops, 2e12);
  EXPECT_EQ(peak.report().raised_by, "");
}

TEST(Peak, OfAStepThatRaisesItUtilisationIsOneWithoutRounding) {
  Machinery machine{.rates = {1e-9}};
  for (const double tokens_per_s : {1.0 / 3, 12345.678, 1e5 / 7, 98765.4321}) {
    const config::FlopsPerToken flops{.matmul = 1.1e9 / 3, .attention = 1e7 / 9, .recomputed = 1e8 / 7};
    PeakTracker peak = machine.tracker();
    peak.measure(1);
    peak.raise_to_rate(flops.hardware() * tokens_per_s, "a step");
    const config::Utilisation use = config::utilisation(flops, tokens_per_s, peak.flops());
    EXPECT_EQ(use.hfu, 1);
    EXPECT_LT(use.mfu_causal, 1);
  }
}

TEST(Peak, ThatWasGivenStaysAndReportsOnceThatItIsTooLow) {
  for (const auto& [origin, advice] :
       {std::pair{"user", "set by hardware.peak_tflops"}, {"data sheet", "data sheet"}}) {
    PeakTracker peak(1e12, origin);
    peak.measure();
    EXPECT_FALSE(peak.is_due());
    EXPECT_EQ(peak.raise_to_rate(0.5e12, "step 1"), "");
    tests::expect_parts(peak.raise_to_rate(2e12, "step 2"), {advice});
    EXPECT_EQ(peak.raise_to_rate(3e12, "step 3"), "");
    EXPECT_EQ(peak.flops(), 1e12);
    EXPECT_EQ(peak.report().origin, origin);
    EXPECT_EQ(peak.report().windows, 0);
  }
  PeakTracker product(1e12, "measured", "library GEMMs");  // a GPU of an unknown model
  EXPECT_NE(product.raise_to_rate(2e12, "step 2"), "");
  EXPECT_EQ(product.flops(), 2e12);
}

TEST(Peak, ReportsWhereItComesFrom) {
  tests::expect_parts(to_string(PeakReport{.flops = 989.4e12, .origin = "data sheet"}), {"989 TFLOP/s", "data sheet"});
  PeakReport measured{.flops = 0.19e12, .origin = "measured", .unit = "AVX2 fma", .windows = 60};
  tests::expect_parts(to_string(measured), {"0.19 TFLOP/s", "AVX2 fma", "60 windows"});
  measured.raised_by = "the products of step 3";
  tests::expect_parts(to_string(measured), {"0.19 TFLOP/s", "AVX2 fma", "the products of step 3"});
}

TEST(Peak, RanksMeasureTogetherAndKnowTheSameRates) {
  constexpr int kRanks = 3;
  std::array<PeakReport, kRanks> reports;
  comm::run_on_threads(kRanks, {}, [&](comm::World& world) {
    device::CpuDevice device(1);
    PeakTracker peak = make_peak(device, DType::f32, config::Config(), world);
    peak.sample();
    reports[static_cast<size_t>(world.rank())] = peak.report();
  });
  EXPECT_EQ(reports[0].windows, PeakTracker::kAtStart + PeakTracker::kBetweenSteps);
  EXPECT_GT(reports[0].lowest_flops, 0);
  EXPECT_LE(reports[0].lowest_flops, reports[0].median_flops);
  EXPECT_LE(reports[0].median_flops, reports[0].flops);
  for (const PeakReport& report : reports) {
    EXPECT_EQ(report.flops, reports[0].flops);
    EXPECT_EQ(report.median_flops, reports[0].median_flops);
    EXPECT_EQ(report.windows, reports[0].windows);
  }
}

}  // namespace
}  // namespace trainer::setup
