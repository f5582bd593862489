// Ranks on several GPUs of one host: their memory limits, and the GPUs that their threads use.
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "emulator.h"
#include "rigs/tiny.h"
#include "setup/machine.h"

namespace trainer::tests {
namespace {

struct SeveralDevices : testing::Test {
  ~SeveralDevices() override { emulator::set_devices(1); }

  /// Returns the memory limit of each rank as a share of a device. `given`: the one device that each rank sees;
  /// `instances`: how many devices are instances of one GPU.
  static std::vector<double> limits(int ranks, int devices, const std::vector<int>& given = {}, int instances = 1) {
    emulator::set_devices(devices, instances);
    std::vector<double> shares(static_cast<size_t>(ranks));
    comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      if (!given.empty()) emulator::see_only(given[rank]);
      config::Config c = tiny_config();
      c.run.device = config::DeviceChoice::cuda;
      const setup::Machine machine = setup::choose_machine(c, world);
      EXPECT_EQ(machine.gpu->ordinal, given.empty() ? world.rank() % devices : 0);
      shares[rank] = static_cast<double>(machine.memory_limit) / static_cast<double>(emulator::kDeviceMemory);
    });
    return shares;
  }
};

TEST_F(SeveralDevices, MemoryIsSharedByTheRanksOnOneDeviceOnly) {
  EXPECT_EQ(limits(1, 1), std::vector<double>(1, 1.0));
  EXPECT_EQ(limits(2, 1), std::vector<double>(2, 0.5));
  EXPECT_EQ(limits(4, 4), std::vector<double>(4, 1.0));
  EXPECT_EQ(limits(3, 2), (std::vector{0.5, 1.0, 0.5}));
  EXPECT_EQ(limits(4, 4, {3, 1, 0, 2}), std::vector<double>(4, 1.0)) << "one visible device for each rank";
  EXPECT_EQ(limits(3, 2, {1, 0, 1}), (std::vector{0.5, 1.0, 0.5}));
}

TEST_F(SeveralDevices, MigInstancesOfOneGpuHaveTheirOwnMemory) {
  EXPECT_EQ(limits(2, 2, {0, 1}, 2), std::vector<double>(2, 1.0));
  EXPECT_EQ(limits(3, 2, {1, 0, 1}, 2), (std::vector{0.5, 1.0, 0.5}));
  emulator::set_devices(2, 2);
  const std::vector<device::cuda::Facts> both = device::cuda::devices();
  EXPECT_EQ(both[0].pci_bus_id, both[1].pci_bus_id);
  EXPECT_EQ(both[1].uuid, "e0010000000000000000000000000000");
}

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
