// Training on a CUDA device with optimizer state in host memory. Transfers use separate streams there, and a missing
// wait changes a bit.
#include <gtest/gtest.h>

#include "bench/profile.h"
#include "device/cuda/cuda_device.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

const HowToRun kOnGpu{.device = [](int) { return device::cuda::make_device(0, 2); }};

struct CudaOffload : testing::Test {
  void SetUp() override {
    if (device::cuda::devices().empty()) GTEST_SKIP() << device::cuda::no_device_reason();
  }
  /// Requires that every offload plan gives the bits of `c` without offload.
  void expect_bits_of_none(const config::Config& c, DType compute, int64_t steps) {
    expect_bits_with_every_plan(train(c, compute, steps, kOnGpu), c, compute, steps, kOnGpu);
  }
};

TEST_F(CudaOffload, EveryPlanHasTheBitsOfNone) {
  config::Config c = tiny_config();
  c.parallel.data = 1;
  for (const DType compute : {DType::f32, DType::bf16}) expect_bits_of_none(c, compute, 4);
}

TEST_F(CudaOffload, Bf16GradientsToo) {
  config::Config c = tiny_config();
  c.parallel.data = 1;
  c.offload.grad_transport = config::GradTransport::bf16;
  expect_bits_of_none(c, DType::bf16, 4);
}

TEST_F(CudaOffload, ReplicasThatSplitTheStateToo) {
  config::Config c = tiny_config();
  c.parallel.data = 2;
  c.parallel.zero_stage = 1;
  expect_bits_of_none(c, DType::bf16, 3);
}

TEST_F(CudaOffload, ProfilesMeasureTheRatesOfTheHost) {
  config::Config c = tiny_config();
  c.offload.subgroup = 1 << 14;
  const setup::Machine machine{.compute = DType::bf16, .host_limit = int64_t{1} << 30};
  const std::unique_ptr<device::Device> device = device::cuda::make_device(0, 2);
  const plan::Host host = bench::measure_host(*comm::solo_world(), c, machine, *device);
  EXPECT_EQ(host.memory_bytes, 1 << 30);
  for (const double bytes : {host.memory_rate, host.to_device, host.to_host}) {
    EXPECT_GT(bytes, 1e6);
    EXPECT_LT(bytes, 1e13);
  }
  EXPECT_GT(host.updates, 1e4);
  EXPECT_LT(host.updates, 1e12);
  EXPECT_EQ(device->memory().at("calibration").current, 0);
}

}  // namespace
}  // namespace trainer::tests
