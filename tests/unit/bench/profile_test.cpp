#include "bench/profile.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/offload_time.h"

namespace trainer::bench {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
/// A quick measurement: no GEMMs and no steps; two payloads, the least to which a link can be fitted.
const ProfileOptions kQuick{.repeats = 1, .product_seconds = 0, .steps = false, .payloads = {1 << 10, 1 << 20}};

config::Config config_with(const std::string& device) {
  config::Config config;
  config.hardware.peak_tflops = 1;
  config.debug.emulate_device = device;
  return config;
}

setup::Machine machine_with(int64_t host_limit) {
  return {.isa = device::detect_isa(), .memory_limit = 4 * kGiB, .host_limit = host_limit};
}

/// Writes a profile as TOML and parses it.
plan::Cluster read_back(const plan::Cluster& profile) {
  return plan::parse_cluster(plan::to_toml(profile), "here.toml");
}

TEST(Profile, HasTheHostOfAnEmulatedDevice) {
  const config::Config config = config_with("to_device=50,to_host=40,host=2.5,device=100,memory=80,pageable=3");
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    const setup::Machine machine = machine_with(world.first() ? 4 * kGiB : 8 * kGiB);
    const plan::Cluster profile = read_back(measure_profile(world, config, machine, kQuick));
    EXPECT_TRUE(profile.cpu);
    EXPECT_NE(profile.source.find("[host]: debug.emulate_device"), std::string::npos) << profile.source;
    ASSERT_TRUE(profile.host.known());
    EXPECT_NEAR(profile.host.memory_bytes, 6.0 * kGiB, 1);  // the mean of the ranks
    // The planner derives these rates from the profile.
    const offload::Rates rates = plan::offload_rates(profile, {.master = 4, .states = 8, .compute = 4, .gradient = 4});
    EXPECT_NEAR(rates.to_device, 50e9, 1);
    EXPECT_NEAR(rates.to_host, 40e9, 1);
    EXPECT_NEAR(rates.host, 2.5e9, 1);
    EXPECT_NEAR(rates.memory, 80e9, 1);
    EXPECT_EQ(plan::to_toml(read_back(profile)), plan::to_toml(profile));
  });
}

TEST(Profile, HasWhatStepsOfAllRanksReach) {
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    const plan::Cluster profile =
        read_back(measure_profile(world, config_with(""), machine_with(4 * kGiB),
                                  {.repeats = 3, .product_seconds = 1e-5, .payloads = {1 << 10, 1 << 20}}));
    EXPECT_FALSE(profile.products.empty());
    for (const double share : profile.in_step) {
      EXPECT_NE(share, 1) << "as if it had not been measured";
      EXPECT_GT(share, 0);
      EXPECT_TRUE(std::isfinite(share));
    }
    // The ranks are threads: they communicate within a node. How fast depends on the machine's load.
    EXPECT_GT(profile.intra.progress, 0);
    EXPECT_LE(profile.intra.progress, 1);
    EXPECT_GE(profile.intra.slowdown, 0);
    EXPECT_LE(profile.intra.slowdown, 1);
    EXPECT_EQ(profile.attentions.size(), 2u * 2 * 3);  // passes, lengths, head sizes
    for (const plan::AttentionPoint& point : profile.attentions) EXPECT_GT(point.flops, 0) << point.length;
    // The operators of GPT-2 and of Llama.
    for (const OpKind kind : {OpKind::norm, OpKind::activation, OpKind::rope, OpKind::embedding, OpKind::loss,
                              OpKind::grad_norm, OpKind::optimizer}) {
      ASSERT_TRUE(profile.operators.contains(kind)) << name_of(kind);
      EXPECT_GT(profile.operators.at(kind), 1e6) << name_of(kind);
      EXPECT_LT(profile.operators.at(kind), 1e12) << name_of(kind);
    }
  });
}

TEST(Profile, InterferenceFollowsFromTimes) {
  // Compute takes 1 s and communication 0.25 s separately. Together, compute ends after 1.1 s, communication at 0.5 s:
  // half its speed, and compute lost 0.1 s of those 0.5 s.
  Interference found = interference(1, 0.25, 1.1, 0.5);
  EXPECT_NEAR(found.slowdown, 0.2, 1e-12);
  EXPECT_NEAR(found.progress, 0.5, 1e-12);
  // Communication of 1 s ends at 1.5 s, 0.5 s after compute: half of it was done within 1 s.
  found = interference(1, 1, 1, 1.5);
  EXPECT_EQ(found.slowdown, 0);
  EXPECT_NEAR(found.progress, 0.5, 1e-12);
  // Noise: times shorter than those measured separately.
  found = interference(1, 0.5, 0.9, 0.4);
  EXPECT_EQ(found.slowdown, 0);
  EXPECT_EQ(found.progress, 1);
  EXPECT_EQ(interference(1, 0.5, 1, 2).progress, 0.01) << "no progress until compute ended";
}

TEST(Profile, HasNoHostWhereACpuComputesInItsOwnMemory) {
  const plan::Cluster profile =
      read_back(measure_profile(*comm::solo_world(), config_with(""), machine_with(4 * kGiB), kQuick));
  EXPECT_FALSE(profile.host.known());
  EXPECT_EQ(profile.host.memory_bytes, 0);
  EXPECT_GT(profile.memory_rate, 0);
  EXPECT_EQ(plan::to_toml(profile).find("[host]"), std::string::npos);
}

}  // namespace
}  // namespace trainer::bench
