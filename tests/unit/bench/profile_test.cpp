#include "bench/profile.h"

#include <gtest/gtest.h>

#include "plan/offload_time.h"

namespace trainer::bench {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
/// Little to measure: no products; two payloads, from which links are fitted.
const ProfileOptions kQuick{.repeats = 1, .product_seconds = 0, .payloads = {1 << 10, 1 << 20}};

config::Config config_with(const std::string& device) {
  config::Config config;
  config.hardware.peak_tflops = 1;
  config.debug.emulate_device = device;
  return config;
}

plan::Machine machine_with(int64_t host_limit) {
  return {.isa = device::detect_isa(), .memory_limit = 4 * kGiB, .host_limit = host_limit};
}

/// Returns what the file of a profile gives back.
plan::Cluster read_back(const plan::Cluster& profile) {
  return plan::parse_cluster(plan::to_toml(profile), "here.toml");
}

TEST(Profile, HasTheHostOfAnEmulatedDevice) {
  const config::Config config = config_with("to_device=50,to_host=40,host=2.5,device=100,memory=80,pageable=3");
  comm::run_on_threads(2, {}, [&](comm::World& world) {
    const plan::Machine machine = machine_with(world.first() ? 4 * kGiB : 8 * kGiB);
    const plan::Cluster profile = read_back(measure_profile(world, config, machine, kQuick));
    EXPECT_TRUE(profile.cpu);
    EXPECT_NE(profile.source.find("[host]: debug.emulate_device"), std::string::npos) << profile.source;
    ASSERT_TRUE(profile.host.known());
    EXPECT_NEAR(profile.host.memory_bytes, 6.0 * kGiB, 1);  // the mean of the ranks
    // What the planner makes of it.
    const offload::Rates rates = plan::offload_rates(profile, {.state = 4, .compute = 4, .gradient = 4});
    EXPECT_NEAR(rates.to_device, 50e9, 1);
    EXPECT_NEAR(rates.to_host, 40e9, 1);
    EXPECT_NEAR(rates.host, 2.5e9, 1);
    EXPECT_NEAR(rates.memory, 80e9, 1);
    EXPECT_EQ(plan::to_toml(read_back(profile)), plan::to_toml(profile));
  });
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
