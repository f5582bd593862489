#include "bench/offload.h"

#include <gtest/gtest.h>

#include "offload/calibrate.h"

namespace trainer::bench {
namespace {

constexpr offload::Rates kH100{.to_device = 55e9, .to_host = 55e9, .host = 3e9, .device = 100e9, .memory = 87.5e9};

TEST(OffloadLadder, EveryRungIsNoSlowerThanBlockingAndTheBestNoSlowerThanAny) {
  const std::vector<OffloadRung> rungs = offload_ladder(3'800'000'000, 25'000'000, 3, kH100, {});
  ASSERT_EQ(rungs.size(), 6u);
  const double best = rungs.back().played_s;
  for (const OffloadRung& rung : rungs) {
    EXPECT_LE(rung.played_s, rungs.front().played_s) << rung.name;
    EXPECT_LE(best, 1.02 * rung.played_s) << rung.name;
    if (rung.predicted_s > 0) {
      EXPECT_NEAR(rung.predicted_s / rung.played_s, 1, 0.05) << rung.name;
    }
  }
  EXPECT_EQ(rungs[1].share, (config::Fraction{0, 1}));
  // 32 bytes of memory traffic a parameter with fp32 gradients, bf16 weights: memory decides.
  EXPECT_NEAR(rungs[1].played_s, 3.8e9 * 32 / 87.5e9, 0.02);
}

TEST(OffloadLadder, RatesAreMeasuredAndPositive) {
  device::CpuDevice device(1), host(2);
  const offload::Rates rates = offload::measure_rates(device, host, 1 << 14, DType::f32);
  for (const double rate : {rates.to_device, rates.to_host, rates.host, rates.device, rates.memory}) EXPECT_GT(rate, 0);
  device::DryDevice dry(1), dry_host(2);
  offload::measure_rates(dry, dry_host, 1 << 14, DType::f32);
  EXPECT_EQ(dry.memory().at("calibration").peak, device.memory().at("calibration").peak);
  EXPECT_EQ(dry_host.memory().at("calibration").peak, host.memory().at("calibration").peak);
}

}  // namespace
}  // namespace trainer::bench
