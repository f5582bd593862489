#include "run/slow_ranks.h"

#include <gtest/gtest.h>

#include <random>

namespace trainer::run {
namespace {

using Sample = SlowRanks::Sample;

/// A watch over samples that are given.
struct Watch {
  explicit Watch(int64_t stages = 1) : ranks(*world, staged(stages), device) {}
  static config::Config staged(int64_t stages) {
    config::Config config;
    config.parallel.stages = stages;
    return config;
  }

  std::unique_ptr<comm::World> world = comm::solo_world();
  device::CpuDevice device{1};
  SlowRanks ranks;
  int64_t windows = 0;

  report::RanksReport add(const std::vector<Sample>& samples) {
    std::vector<std::string> hosts;
    for (size_t rank = 0; rank < samples.size(); ++rank)
      hosts.push_back(std::string(1, static_cast<char>('a' + rank / 4)));
    return ranks.judge(50 * ++windows, samples, hosts);
  }
};

/// own[w][r] = 100 + ((13w + 7r) mod 5) ms; rank 5 of 8 is 15 ms slower, except in window 3.
std::vector<Sample> golden_window(int w) {
  std::vector<Sample> samples(8);
  for (int r = 0; r < 8; ++r)
    samples[static_cast<size_t>(r)].own_ms = 100 + (13 * w + 7 * r) % 5 + (r == 5 && w != 3 ? 15 : 0);
  return samples;
}

TEST(SlowRanks, HaveTheGoldenStatistics) {
  Watch watch;
  std::vector<report::RanksReport> reports;
  std::vector<std::string> warnings;
  for (int w = 0; w < 10; ++w) {
    reports.push_back(watch.add(golden_window(w)));
    const std::vector<std::string> found = watch.ranks.warnings();
    warnings.insert(warnings.end(), found.begin(), found.end());
  }
  const auto expect = [&](size_t w, double p90, double most, int64_t slowest) {
    EXPECT_EQ(reports[w].median_ms, 102.5) << w;
    EXPECT_EQ(reports[w].p90_ms, p90) << w;
    EXPECT_EQ(reports[w].max_ms, most) << w;
    EXPECT_EQ(reports[w].slowest, slowest) << w;
    EXPECT_EQ(reports[w].host, slowest < 4 ? "a" : "b") << w;
  };
  expect(0, 115, 115, 5);
  expect(3, 104, 104, 0);
  expect(9, 117, 117, 5);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0],
            "rank 5 (host b) needed 1.14 x the median of all ranks in 8 of the last 9 windows (compute); every step "
            "waits for it: about 12 % of the time");
}

TEST(SlowRanks, AreNotFoundInNoise) {
  std::mt19937_64 engine(3);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  Watch watch;
  for (int w = 0; w < 1000; ++w) {
    std::vector<Sample> samples(64);
    for (Sample& sample : samples)
      sample = {100 * noise(engine), 2 * noise(engine), 20 * noise(engine), 10 * noise(engine)};
    watch.add(samples);
    ASSERT_TRUE(watch.ranks.warnings().empty()) << w;
  }
}

TEST(SlowRanks, AreNamedOnceByTheirCause) {
  Watch watch;
  std::vector<std::string> warnings;
  for (int w = 0; w < 30; ++w) {
    std::vector<Sample> samples(8, Sample{100, 1, 20, 10});
    samples[2] = {140, 41, 0, 10};         // reads slowly
    samples[6].probe_ms = 13;              // a slow GPU, which the step's time does not show
    if (w >= 20) samples[7].own_ms = 130;  // another rank of host b, by another cause
    watch.add(samples);
    const std::vector<std::string> found = watch.ranks.warnings();
    warnings.insert(warnings.end(), found.begin(), found.end());
  }
  ASSERT_EQ(warnings.size(), 3U);
  EXPECT_EQ(warnings[0].substr(0, 16), "rank 2 (host a) ");
  EXPECT_NE(warnings[0].find("(reading data)"), std::string::npos) << warnings[0];
  EXPECT_EQ(warnings[1].substr(0, 16), "rank 6 (host b) ");
  EXPECT_NE(warnings[1].find("1.30 x the median of all ranks in 8 of the last 8 windows (GEMMs on its GPU)"),
            std::string::npos)
      << warnings[1];
  EXPECT_EQ(warnings[2].substr(0, 16), "rank 7 (host b) ");
}

TEST(SlowRanks, AreComparedWithTheirStageOnly) {
  for (const int64_t stages : {2, 8}) {
    Watch watch(stages);
    std::vector<std::string> warnings;
    for (int w = 0; w < 10; ++w) {
      std::vector<Sample> samples(8, Sample{.own_ms = 100, .data_ms = 1});
      for (size_t rank = 4; rank < 8; ++rank) samples[rank] = {.own_ms = rank == 6 ? 168.0 : 140.0, .data_ms = 1};
      const report::RanksReport report = watch.add(samples);
      EXPECT_EQ(report.median_ms, 120);
      EXPECT_EQ(report.slowest, 6);
      EXPECT_EQ(report.stages, stages);
      const std::vector<std::string> found = watch.ranks.warnings();
      warnings.insert(warnings.end(), found.begin(), found.end());
    }
    if (stages == 8) {  // with one rank each, there is nothing to compare with
      EXPECT_TRUE(warnings.empty());
      continue;
    }
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_EQ(warnings[0],
              "rank 6 (host b) needed 1.20 x the median of its stage's ranks in 8 of the last 8 windows (compute); "
              "every step waits for it: about 17 % of the time");
  }
}

TEST(SlowRanks, AreNotFoundByMeasurementsThatFail) {
  Watch watch;
  for (int w = 0; w < 10; ++w) {
    const report::RanksReport report = watch.add({{100, 1, 0, 10}, {100, 1, 0, 0}, {100, 1, 0, 0}, {100, 1, 0, 10}});
    EXPECT_EQ(report.own_ms, std::vector<double>(4, 100));
  }
  EXPECT_TRUE(watch.ranks.warnings().empty());
}

// Each window costs two gathers at most, of less than 64 bytes from each rank.
TEST(SlowRanks, SendLittle) {
  EXPECT_LE(sizeof(Sample), 64U);
  comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
    device::CpuDevice device(1);
    SlowRanks ranks(world, config::Config(), device);
    EXPECT_FALSE(ranks.compare(50));  // no steps
    Meter meter;
    meter.add_wait({.axes = 1}, {0, 0.25}, {0, 0.25}, 8);
    for (int64_t step = 1; step <= 2; ++step) {
      const int64_t before = world.bytes_sent();
      ranks.add(1000 + world.rank(), 5, meter);
      const auto report = ranks.compare(step);
      ASSERT_TRUE(report);
      EXPECT_EQ(report->own_ms, (std::vector<double>{750, 751, 752}));
      EXPECT_EQ(report->slowest, 2);
      if (step == 1) continue;  // with the names of the hosts
      EXPECT_LE(world.bytes_sent() - before, 3 * 200);
    }
  });
}

TEST(SlowRanks, OfManyRanksAreListedAsQuantiles) {
  std::vector<double> own(4096);
  for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<double>((i * 1237) % 4096);
  const report::RanksReport report = report::ranks_report(1, own);
  ASSERT_EQ(report.own_ms.size(), report::kMostRanksListed);
  EXPECT_EQ(report.own_ms.front(), 3);
  EXPECT_EQ(report.own_ms.back(), 4095);
  EXPECT_EQ(report.max_ms, 4095);
}

}  // namespace
}  // namespace trainer::run
