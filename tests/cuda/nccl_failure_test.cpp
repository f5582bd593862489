// The end of a run with NCCL after losing a rank, and the choice of the transport for tensors.
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "comm/gpu_transport.h"
#include "cuda/nccl_rig.h"
#include "unit/comm/link_cases.h"

namespace trainer::comm {
namespace {

struct NcclFailure : testing::Test {
  void TearDown() override { emulator::set_nccl_faults({}); }
};

TEST_F(NcclFailure, TheWatchdogNamesTheRankThatDoesNotComeAndEndsTheWait) {
  std::atomic<bool> over{false};
  std::atomic<int> left{0};
  const Error error = error_of([&] {
    on_gpus(3, {.timeout_s = 0.5}, [&](World& below, GpuRank& rank) {
      const auto comm =
          rank.world->communicator(*rank.device, group_of(*rank.world, 3, 3, "tensor"), Purpose::critical);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      comm->all_reduce(rank.ex, x.all()).join(rank.ex);
      if (below.rank() == 1) {
        while (!over) std::this_thread::yield();
        return;
      }
      try {
        comm->reduce_scatter(rank.ex, x.all(), x.part(comm->chunk(300))).join(rank.ex);
        x.get();  // blocks until the communicators are aborted, as the device waits for rank 1
        comm->all_reduce(rank.ex, x.all()).join(rank.ex);
        ADD_FAILURE() << "an operation that rank 1 took no part in";
      } catch (...) {
        if (++left == 2) over = true;
        throw;
      }
    });
  });
  EXPECT_EQ(error.code(), Code::comm);
  EXPECT_TRUE(
      contains(error.what(),
               "reduce_scatter along tensor (operation 2 of channel critical) did not complete within 0.5 s: rank 1 "
               "has not started it (operations that it has started on this channel: 1)"))
      << error.what();
}

TEST_F(NcclFailure, AnOperationThatHangsOnTheDeviceIsReported) {
  emulator::set_nccl_faults({.hanging_device = 1, .hang_from = 1});
  const Error error = error_of([&] {
    on_gpus(2, {.timeout_s = 0.4}, [&](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::grads);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      for (int i = 0; i < 3; ++i) {
        comm->all_reduce(rank.ex, x.all()).join(rank.ex);
        x.get();
      }
      rank.world->control().barrier();
    });
  });
  EXPECT_EQ(error.code(), Code::comm);
  EXPECT_TRUE(contains(error.what(),
                       "all_reduce along data (operation 2 of channel grads) did not complete within 0.4 s: all "
                       "ranks of its group have started it and respond"))
      << error.what();
}

TEST_F(NcclFailure, TheWatchdogNamesThePeerOfALink) {
  const Error error = error_of([&] {
    on_gpus(2, {.timeout_s = 0.4}, [&](World&, GpuRank& rank) {
      const auto link =
          rank.world->communicator(*rank.device, link_group(*rank.world, 0, Way::forward), Purpose::critical);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      link->send(rank.ex, x.all()).join(rank.ex);
      x.get();
      if (rank.world->rank() == 0) return;
      link->send(rank.ex, x.all()).join(rank.ex);
      x.get();  // blocks until the communicators are aborted
      link->send(rank.ex, x.all()).join(rank.ex);
    });
  });
  EXPECT_EQ(error.code(), Code::comm);
  for (const char* part : {"rank 1 has been waiting for rank 0 for", "in send along stage (operation 2 of link 1)",
                           "rank 0 has ended without starting it"})
    EXPECT_TRUE(contains(error.what(), part)) << error.what();
}

TEST_F(NcclFailure, ABrokenCommunicatorEndsAllRanks) {
  std::atomic<int> left{0};
  const Error error = error_of([&] {
    on_gpus(2, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::grads);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      rank.world->control().barrier();
      if (rank.world->rank() == 0) emulator::set_nccl_faults({.broken_device = 1});
      try {
        for (const double begin = now_seconds(); now_seconds() - begin < 60;) {
          comm->all_reduce(rank.ex, x.all()).join(rank.ex);
          x.get();
        }
      } catch (...) {
        ++left;
        throw;
      }
    });
  });
  EXPECT_EQ(error.code(), Code::comm);
  EXPECT_TRUE(contains(error.what(), "rank 1: ")) << error.what();
  EXPECT_TRUE(contains(error.what(),
                       "along data: remote process exited or there was a network error: emulated "
                       "details (set NCCL_DEBUG=INFO"))
      << error.what();
  EXPECT_EQ(left, 2);
}

TEST_F(NcclFailure, AnErrorOfOneRankReleasesTheOtherRanks) {
  const Error error = error_of([&] {
    on_gpus(3, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 3), Purpose::grads);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      if (rank.world->rank() == 2) throw Error(Code::data, "a bad file");
      comm->all_reduce(rank.ex, x.all()).join(rank.ex);
      x.get();
      rank.world->control().barrier();
    });
  });
  EXPECT_EQ(error.code(), Code::data);
  EXPECT_STREQ(error.what(), "a bad file");
}

TEST_F(NcclFailure, ATicketLostToAnExceptionLetsTheErrorThrough) {
  const Error error = error_of([&] {
    on_gpus(2, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::grads);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      if (rank.world->rank() == 1) {
        rank.world->control().barrier();  // rank 1 never starts rank 0's all-reduce
        return;
      }
      const Ticket ticket = comm->all_reduce(rank.ex, x.all());
      throw Error(Code::data, "a bad file");
    });
  });
  EXPECT_EQ(error.code(), Code::data);
}

TEST_F(NcclFailure, RanksThatCannotBeReachedAreAnErrorAfterTheTimeout) {
  emulator::set_nccl_faults({.never_connects = true});
  const Error error = error_of([] { on_gpus(2, {.timeout_s = 0.3}, [](World&, GpuRank&) {}); });
  EXPECT_EQ(error.code(), Code::comm);
  EXPECT_TRUE(contains(error.what(), "NCCL did not complete the connection of 2 ranks within 0.3 s")) << error.what();
}

TEST(NcclFailureOfUse, CommunicatorsAreConnectedFirst) {
  const Error error = error_of([] {
    on_gpus(2, {.timeout_s = 60}, [](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::grads);
      OnGpu<float> x(rank, std::vector<float>(3));
      comm->all_reduce(rank.ex, x.all()).join(rank.ex);
    });
  });
  EXPECT_EQ(error.code(), Code::internal);
  EXPECT_TRUE(contains(error.what(), "before the world is connected")) << error.what();
}

TEST(GpuTransport, ReportsWhyNcclCannotRun) {
  const GpuAddress a{"a", "0000:01:00.0"}, b{"a", "0000:02:00.0"}, other_host{"b", "0000:01:00.0"};
  EXPECT_EQ(obstacle_to_nccl({a, b, other_host}), "");
  EXPECT_EQ(obstacle_to_nccl({b, a, other_host, a, a}), "ranks 1, 3 and 4 share GPU 0000:01:00.0 of host a");
  EXPECT_EQ(obstacle_to_nccl({a, std::nullopt}), "rank 1 has no GPU");
  const GpuAddress instance{"a", "0000:01:00.0", "01"}, other_instance{"a", "0000:01:00.0", "02"};
  EXPECT_EQ(obstacle_to_nccl({instance, other_instance}), "ranks 0 and 1 share GPU 0000:01:00.0 of host a");
}

TEST(GpuTransport, IsChosenByKeyAndMachine) {
  const auto choose = [](int devices, bool nccl) {
    GpuTransport chosen;
    emulator::set_devices(devices);
    run_on_threads(2, {.timeout_s = 60}, [&](World& world) {
      const auto device = device::cuda::make_device(world.rank() % devices, 1);
      const GpuTransport mine = choose_gpu_transport(world, *device, nccl);
      EXPECT_EQ(gpu_world(world, *device, mine) != nullptr, mine.nccl);
      if (world.rank() == 1) chosen = mine;
    });
    return chosen;
  };
  EXPECT_TRUE(choose(2, true).nccl);
  EXPECT_EQ(choose(2, true).reason, "NCCL 2.28.9, as requested");
  EXPECT_FALSE(choose(2, false).nccl);
  EXPECT_EQ(choose(2, false).reason, "through the host (threads): as requested");
  const Error error = error_of([&] { choose(1, true); });
  EXPECT_EQ(error.code(), Code::plan);
  EXPECT_TRUE(contains(error.what(), "parallel.transport = \"nccl\": ranks 0 and 1 share GPU 0000:00:00.0 of host "))
      << error.what();
  run_on_threads(2, {.timeout_s = 60}, [&](World& world) {
    device::CpuDevice cpu(1);
    EXPECT_EQ(choose_gpu_transport(world, cpu, std::nullopt).reason, "");
    EXPECT_EQ(error_of([&] { choose_gpu_transport(world, cpu, true); }).code(), Code::plan);
  });
  EXPECT_FALSE(choose_gpu_transport(*solo_world(), device::CpuDevice(1), true).nccl);
}

}  // namespace
}  // namespace trainer::comm
