#include "bench/offload.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/calibrate.h"
#include "optim/elementwise.h"

namespace trainer::bench {
namespace {

// 3.8e9 parameters per rank, as in the published run.
constexpr OffloadCase kH100{
    .parameters = 3'800'000'000,
    .subgroup = 25'000'000,
    .rates = {.to_device = 55e9, .to_host = 55e9, .host = 3e9, .device = 100e9, .memory = 87.5e9, .pageable = 3.3e9}};

const OffloadRung& rung_of(const std::vector<OffloadRung>& rungs, const std::string& name) {
  const auto found = std::ranges::find(rungs, name, &OffloadRung::name);
  if (found == rungs.end()) throw Error(Code::internal, "no rung is called " + name);
  return *found;
}

TEST(OffloadLadder, InterleavedUpdatesAreFasterThanBlockingAndNoSlowerThanAsynchronousOnes) {
  const std::vector<OffloadRung> rungs = offload_ladder(kH100);
  const OffloadRung& best = rung_of(rungs, "interleaved, best share");
  const OffloadRung& blocking = rung_of(rungs, "blocking, all on the host, pageable gradients");
  const OffloadRung& pinned = rung_of(rungs, "blocking, all on the host, pinned gradients");
  const OffloadRung& asynchronous = rung_of(rungs, "asynchronous, all on the host");
  EXPECT_GE(blocking.played_s, 2.5 * best.played_s);
  EXPECT_GE(asynchronous.played_s, best.played_s);
  EXPECT_GE(pinned.played_s, asynchronous.played_s);
  // Pageable memory receives fp32 gradients at 3.3 GB/s instead of 55.
  EXPECT_NEAR(blocking.played_s - pinned.played_s, 3.8e9 * 4 * (1 / 3.3e9 - 1 / 55e9), 0.01);
  // fp32 gradients and bf16 weights make 32 bytes of memory traffic per parameter: memory bandwidth is the bottleneck.
  EXPECT_NEAR(asynchronous.played_s, 3.8e9 * 32 / 87.5e9, 0.02);
  EXPECT_NEAR(rung_of(rungs, "on the device, without offload").played_s, 3.8e9 / 100e9, 0.001);
  EXPECT_LT(rung_of(rungs, "interleaved, best share, a fifth resident").played_s, best.played_s);
  EXPECT_LT(rung_of(rungs, "asynchronous, a fifth resident").played_s, asynchronous.played_s);
  for (const OffloadRung& rung : rungs)
    if (rung.predicted_s > 0) {
      EXPECT_NEAR(rung.predicted_s / rung.played_s, 1, 0.05) << rung.name;
    }
}

TEST(OffloadLadder, TheBestShareIsWithinTwoPerCentOfTheBestOfASweep) {
  const std::vector<OffloadRung> sweep = offload_sweep(kH100);
  EXPECT_EQ(sweep.size(), 23u);  // fractions in lowest terms with denominators up to 8, including 0 and 1
  const double best = std::ranges::min_element(sweep, {}, &OffloadRung::played_s)->played_s;
  EXPECT_LE(rung_of(offload_ladder(kH100), "interleaved, best share").played_s, 1.02 * best);
}

TEST(OffloadLadder, RatesAreMeasuredAndPositive) {
  device::CpuDevice device(1), host(2);
  const std::unique_ptr<optim::ElementwiseRule> adamw = optim::elementwise_rule({}, DType::f32);
  const offload::Rates rates = offload::measure_rates(device, host, 1 << 14, DType::f32, *adamw);
  for (const double rate : {rates.to_device, rates.to_host, rates.host, rates.device, rates.memory}) EXPECT_GT(rate, 0);
  device::DryDevice dry(1), dry_host(2);
  offload::measure_rates(dry, dry_host, 1 << 14, DType::f32, *adamw);
  EXPECT_EQ(dry.memory().at("calibration").peak, device.memory().at("calibration").peak);
  EXPECT_EQ(dry_host.memory().at("calibration").peak, host.memory().at("calibration").peak);
}

}  // namespace
}  // namespace trainer::bench
