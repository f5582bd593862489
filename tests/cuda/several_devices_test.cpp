// Ranks on several GPUs of one host: the GPUs that their threads touch.
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "emulator.h"
#include "rigs/tiny.h"

namespace trainer::tests {
namespace {

struct SeveralDevices : testing::Test {
  ~SeveralDevices() override { emulator::set_devices(1); }
};

TEST_F(SeveralDevices, NoThreadTouchesTheDeviceOfAnotherRank) {
  emulator::set_devices(2);
  for (const auto offload : {config::OffloadOptimizer::none, config::OffloadOptimizer::interleaved}) {
    SCOPED_TRACE(static_cast<int>(offload));
    emulator::forget_touched();
    comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
      config::Config c = tiny_config();
      c.train.micro_batch = 1;
      c.parallel.data = 2;
      c.offload.optimizer = offload;
      Tiny run(&world, c, DType::bf16, device::cuda::make_device(world.rank(), 1));
      for (int64_t n = 1; n <= 2; ++n) EXPECT_GT(run.step(n).loss, 0);
    });
    int on_second = 0;
    for (const std::set<int>& devices : emulator::touched_by_threads()) {
      EXPECT_EQ(devices.size(), 1u) << "a context for one thread on a second device";
      on_second += devices.contains(1);
    }
    EXPECT_GE(on_second, 2) << "rank 1, and its progress thread";
  }
}

}  // namespace
}  // namespace trainer::tests
