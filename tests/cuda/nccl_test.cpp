// The NCCL communicators over an NCCL of our own whose ranks are threads, each on an emulated device: every operation
// with exact sums, groups that cross, lanes, what is counted, and the ways in which a run ends that has lost a rank.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "base/clock.h"
#include "comm/gpu_transport.h"
#include "comm/nccl/nccl_world.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/runtime.h"
#include "nccl.h"
#include "tensor/host_copy.h"
#include "unit/comm/rig.h"
#include "unit/train/layouts.h"

namespace trainer::comm {
namespace {

/// A rank on a device of its own, with NCCL.
struct GpuRank {
  explicit GpuRank(World& below)
      : device(device::cuda::make_device(below.rank(), 1)), world(nccl::make_world(below, *device)) {}
  std::unique_ptr<device::Device> device;
  std::unique_ptr<World> world;
  Arena arena{*device, Arena::Mode::heap};
  Meter meter;
  Exec ex{*device, arena, meter};
};

void on_gpus(int ranks, const WorldOptions& options, const std::function<void(World&, GpuRank&)>& body) {
  emulator::set_devices(ranks);
  run_on_threads(ranks, options, [&](World& below) {
    GpuRank rank(below);
    body(below, rank);
  });
  EXPECT_EQ(emulator::live_nccl_communicators(), 0);
}

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Code::internal, "");
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Whole numbers that bf16 holds, and so do sums of eight of them: exact in every order of addition.
template <typename T>
std::vector<T> numbers(int rank, int64_t n, uint64_t salt) {
  std::vector<T> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    all[static_cast<size_t>(i)] = T(static_cast<float>((value<int32_t>(rank, i, salt) & 31) - 15));
  return all;
}
template <typename T>
std::vector<T> reduction(Reduce reduce, int g, int64_t n, uint64_t salt) {
  std::vector<T> all(static_cast<size_t>(n));
  std::vector<double> sums(static_cast<size_t>(n));
  for (int rank = 0; rank < g; ++rank) {
    const std::vector<T> x = numbers<T>(rank, n, salt);
    for (size_t i = 0; i < sums.size(); ++i) {
      const double term = static_cast<double>(static_cast<float>(x[i]));
      sums[i] = rank == 0 ? term : reduce == Reduce::max ? std::max(sums[i], term) : sums[i] + term;
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) all[i] = T(static_cast<float>(sums[i]));
  return all;
}

/// Memory of a rank's device, and what is in it.
template <typename T>
struct OnGpu {
  OnGpu(GpuRank& rank, const std::vector<T>& data)
      : device(*rank.device),
        memory(device, "test", {std::max<int64_t>(1, static_cast<int64_t>(data.size()))}, DTypeOf<T>::value),
        n(static_cast<int64_t>(data.size())) {
    device.copy_to_device(memory.tensor().data, data.data(), n * static_cast<int64_t>(sizeof(T)));
  }
  Tensor all() const { return memory.tensor().range(0, n); }
  Tensor part(Chunk chunk) const { return memory.tensor().range(chunk.begin, chunk.count); }
  std::vector<T> get() {
    std::vector<T> data(static_cast<size_t>(n));
    device.copy_to_host(data.data(), memory.tensor().data, n * static_cast<int64_t>(sizeof(T)));
    return data;
  }
  device::Device& device;
  Buffer memory;
  int64_t n;
};

class Cases {
 public:
  /// The first `size` ranks of the world; every rank calls.
  Cases(GpuRank& rank, int size) : rank_(rank), g_(size), inside_(rank.world->rank() < size) {
    if (inside_)
      comm_ =
          rank.world->communicator(*rank.device, group_of(*rank.world, size, static_cast<uint32_t>(size)), Lane::grads);
    rank.world->connect();
  }

  template <typename T>
  void run(int64_t n) {
    if (!inside_) return;
    for (const Reduce reduce : {Reduce::sum, Reduce::max}) reductions<T>(n, reduce);
    movements<T>(n);
  }

 private:
  template <typename T>
  void reductions(int64_t n, Reduce reduce) {
    const uint64_t salt = ++salt_;
    Communicator& c = *comm_;
    const std::vector<T> mine = numbers<T>(c.rank(), n, salt), expected = reduction<T>(reduce, g_, n, salt);
    const Chunk own = c.chunk(n);
    OnGpu<T> x(rank_, mine), y(rank_, std::vector<T>(static_cast<size_t>(own.count))), z(rank_, mine), r(rank_, mine);
    check(CommOp::reduce_scatter, n, sizeof(T), [&] { return c.reduce_scatter(rank_.ex, x.all(), y.all(), reduce); });
    const auto chunk_of_sum = std::vector<T>(expected.begin() + own.begin, expected.begin() + own.begin + own.count);
    EXPECT_TRUE(same_bits(y.get(), chunk_of_sum)) << "reduce_scatter of " << n << " among " << g_;
    EXPECT_TRUE(same_bits(x.get(), mine));
    check(CommOp::reduce_scatter, n, sizeof(T),
          [&] { return c.reduce_scatter(rank_.ex, z.all(), z.part(own), reduce); });
    std::vector<T> in_place = mine;
    std::copy(chunk_of_sum.begin(), chunk_of_sum.end(), in_place.begin() + own.begin);
    EXPECT_TRUE(same_bits(z.get(), in_place)) << "reduce_scatter in place of " << n << " among " << g_;
    check(CommOp::all_reduce, n, sizeof(T), [&] { return c.all_reduce(rank_.ex, x.all(), reduce); });
    EXPECT_TRUE(same_bits(x.get(), expected)) << "all_reduce of " << n << " among " << g_;
    const int root = static_cast<int>(n % g_);
    check(CommOp::reduce, n, sizeof(T), [&] { return c.reduce(rank_.ex, r.all(), root, reduce); });
    EXPECT_TRUE(same_bits(r.get(), c.rank() == root ? expected : mine)) << "reduce of " << n << " among " << g_;
  }

  template <typename T>
  void movements(int64_t n) {
    const uint64_t salt = ++salt_;
    Communicator& c = *comm_;
    std::vector<T> joined;
    for (int place = 0; place < g_; ++place)
      for (const T x : values<T>(place, chunk_of(n, g_, place).count, salt)) joined.push_back(x);
    const Chunk own = c.chunk(n);
    const std::vector<T> piece = values<T>(c.rank(), own.count, salt);
    OnGpu<T> in(rank_, piece), out(rank_, std::vector<T>(static_cast<size_t>(n)));
    check(CommOp::all_gather, n, sizeof(T), [&] { return c.all_gather(rank_.ex, in.all(), out.all()); });
    EXPECT_TRUE(same_bits(out.get(), joined)) << "all_gather of " << n << " among " << g_;
    std::vector<T> with_own(static_cast<size_t>(n));
    std::copy(piece.begin(), piece.end(), with_own.begin() + own.begin);
    OnGpu<T> whole(rank_, with_own);
    check(CommOp::all_gather, n, sizeof(T), [&] { return c.all_gather(rank_.ex, whole.part(own), whole.all()); });
    EXPECT_TRUE(same_bits(whole.get(), joined)) << "all_gather in place of " << n << " among " << g_;
    const int root = static_cast<int>(n % g_);
    OnGpu<T> b(rank_, values<T>(c.rank(), n, salt));
    check(CommOp::broadcast, n, sizeof(T), [&] { return c.broadcast(rank_.ex, b.all(), root); });
    EXPECT_TRUE(same_bits(b.get(), values<T>(root, n, salt))) << "broadcast of " << n << " among " << g_;
    const int64_t k = n / g_ + 1;
    OnGpu<T> from(rank_, values<T>(c.rank(), g_ * k, salt)), to(rank_, std::vector<T>(static_cast<size_t>(g_ * k)));
    check(CommOp::all_to_all, g_ * k, sizeof(T), [&] { return c.all_to_all(rank_.ex, from.all(), to.all()); });
    std::vector<T> exchanged;
    for (int place = 0; place < g_; ++place)
      for (int64_t i = 0; i < k; ++i) exchanged.push_back(value<T>(place, c.rank() * k + i, salt));
    EXPECT_TRUE(same_bits(to.get(), exchanged)) << "all_to_all of " << k << " among " << g_;
    for (const int shift : {1, -1, g_ / 2}) {
      OnGpu<T> sent(rank_, values<T>(c.rank(), n, salt)), received(rank_, std::vector<T>(static_cast<size_t>(n)));
      check(CommOp::send_recv, shift % g_ == 0 ? 0 : n, sizeof(T),
            [&] { return c.send_recv(rank_.ex, sent.all(), received.all(), shift); });
      EXPECT_TRUE(same_bits(received.get(), values<T>((c.rank() - shift + g_) % g_, n, salt)))
          << "send_recv of " << n << " by " << shift << " among " << g_;
    }
  }

  /// Counted as on every transport.
  void check(CommOp op, int64_t payload, int64_t unit, const std::function<Ticket()>& start) {
    rank_.meter = {};
    start().join(rank_.ex);
    const int64_t predicted = wire_elements(op, g_, payload) * unit;
    if (predicted == 0) {
      EXPECT_TRUE(rank_.meter.comm().empty());
      return;
    }
    ASSERT_EQ(rank_.meter.comm().size(), 1u);
    const auto& [key, count] = *rank_.meter.comm().begin();
    EXPECT_EQ(key.op, op);
    EXPECT_EQ(count.calls, 1);
    EXPECT_EQ(count.elements, payload);
    EXPECT_EQ(count.wire_bytes, predicted);
  }

  GpuRank& rank_;
  int g_;
  bool inside_;
  uint64_t salt_ = 0;
  std::unique_ptr<Communicator> comm_;
};

template <typename T>
class NcclOperations : public testing::Test {};
using Reduced = testing::Types<double, float, bf16, int32_t, int64_t>;
TYPED_TEST_SUITE(NcclOperations, Reduced);

TYPED_TEST(NcclOperations, GiveTheExactResultAndCountWhatTheFormulasSay) {
  for (const int g : {1, 2, 3, 4, 8})
    on_gpus(g, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
      Cases cases(rank, g);
      for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{g}, int64_t{1001}, kDirectElements + g})
        cases.run<TypeParam>(n);
    });
}

TEST(NcclGroups, LeaveOutRanksOfTheWorldThatDoNotBelong) {
  on_gpus(4, {.timeout_s = 60}, [](World&, GpuRank& rank) {
    for (const int g : {3, 2}) {
      Cases cases(rank, g);
      cases.run<float>(101);
    }
  });
}

TEST(NcclGroups, TakeTheFastPathWhereChunksAreEven) {
  on_gpus(2, {.timeout_s = 60}, [](World&, GpuRank& rank) {
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::grads);
    rank.world->connect();
    const int me = rank.world->rank();
    emulator::take_nccl_log(me);
    OnGpu<float> even(rank, std::vector<float>(10)), odd(rank, std::vector<float>(11));
    comm->reduce_scatter(rank.ex, even.all(), even.part(comm->chunk(10))).join(rank.ex);
    comm->all_gather(rank.ex, even.part(comm->chunk(10)), even.all()).join(rank.ex);
    EXPECT_EQ(emulator::take_nccl_log(me),
              (std::vector<std::string>{"reduce_scatter 5 f32 of 2", "all_gather 20 bytes of 2"}));
    comm->reduce_scatter(rank.ex, odd.all(), odd.part(comm->chunk(11))).join(rank.ex);
    comm->all_gather(rank.ex, odd.part(comm->chunk(11)), odd.all()).join(rank.ex);
    EXPECT_EQ(emulator::take_nccl_log(me),
              (std::vector<std::string>{"reduce 5 f32 of 2", "reduce 6 f32 of 2", "broadcast 20 bytes of 2",
                                        "broadcast 24 bytes of 2"}));
  });
}

/// Three lanes along rows and columns of a 2×2 mesh, all in flight; joined in another order than started.
void cross(GpuRank& rank) {
  const int me = rank.world->rank(), row = me / 2, column = me % 2;
  struct Line {
    std::unique_ptr<Communicator> comm;
    OnGpu<int32_t> sum, all, shifted;
    std::vector<Ticket> tickets;
  };
  std::vector<Line> lines;
  for (const Lane lane : {Lane::grads, Lane::critical, Lane::weights})
    for (const bool along_row : {true, false}) {
      const std::vector<int> members = along_row ? std::vector{row * 2, row * 2 + 1} : std::vector{column, column + 2};
      lines.push_back(
          {rank.world->communicator(
               *rank.device, group_of(*rank.world, members, along_row ? 1 : 2, along_row ? "row" : "column"), lane),
           OnGpu<int32_t>(rank, std::vector<int32_t>(500, 1 << me)),
           OnGpu<int32_t>(rank, std::vector<int32_t>(7, me)),
           OnGpu<int32_t>(rank, std::vector<int32_t>(500)),
           {}});
    }
  rank.world->connect();
  for (Line& line : lines) {
    const Chunk own = line.comm->chunk(7);
    line.tickets.push_back(line.comm->all_reduce(rank.ex, line.sum.all()));
    line.tickets.push_back(line.comm->all_gather(rank.ex, line.all.part(own), line.all.all()));
    line.tickets.push_back(line.comm->send_recv(rank.ex, line.sum.all(), line.shifted.all(), 1));
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    for (Ticket& ticket : line->tickets) ticket.join(rank.ex);
  for (Line& line : lines) {
    const std::vector<int>& members = line.comm->group().members;
    const int32_t sum = (1 << members[0]) + (1 << members[1]);
    EXPECT_EQ(line.sum.get(), std::vector<int32_t>(500, sum));
    EXPECT_EQ(line.shifted.get(), std::vector<int32_t>(500, sum)) << "sent after the sum was there";
    EXPECT_EQ(line.all.get(), (std::vector<int32_t>{members[0], members[0], members[0], members[1], members[1],
                                                    members[1], members[1]}));
  }
}

TEST(NcclGroups, CrossOnOneLaneAndOnThree) {
  for (const int lanes : {0, 1, 3}) on_gpus(4, {.timeout_s = 60, .lanes = lanes}, [](World&, GpuRank& r) { cross(r); });
}

TEST(NcclOrder, OperationsFollowTheComputeStreamAndItWaitsForThem) {
  on_gpus(2, {.timeout_s = 60}, [](World&, GpuRank& rank) {
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::critical);
    rank.world->connect();
    OnGpu<float> x(rank, std::vector<float>(1000, 1.0f)), y(rank, std::vector<float>(1000));
    for (int round = 0; round < 20; ++round) {
      rank.device->copy_rows(y.all().data, 0, x.all().data, 0, 1, x.all().bytes());  // before: part of the sum
      Ticket ticket = comm->all_reduce(rank.ex, y.all());
      ticket.join(rank.ex);
      rank.device->copy_rows(x.all().data, 0, y.all().data, 0, 1, y.all().bytes());  // after: sees the sum
    }
    EXPECT_EQ(x.get(), std::vector<float>(1000, 1 << 20));
  });
}

TEST(NcclOrder, StartingAndJoiningDoNotWaitOnTheHost) {
  std::atomic<bool> joined{false};
  on_gpus(2, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::critical);
    rank.world->connect();
    OnGpu<float> x(rank, std::vector<float>(1000, 1.0f));
    if (rank.world->rank() == 1)
      while (!joined) std::this_thread::yield();  // the other has gone on without this rank
    comm->all_reduce(rank.ex, x.all()).join(rank.ex);
    joined = true;
    EXPECT_EQ(x.get(), std::vector<float>(1000, 2.0f));
  });
}

TEST(NcclOrder, ThousandsOfOperationsReuseTheirEvents) {
  on_gpus(2, {.timeout_s = 60}, [](World&, GpuRank& rank) {
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::grads);
    rank.world->connect();
    OnGpu<int64_t> x(rank, {1, 2, 3});
    for (int i = 0; i < 2000; ++i) {
      comm->all_reduce(rank.ex, x.all(), Reduce::max).join(rank.ex);
      if (i % 100 == 0) rank.device->synchronize();
    }
    EXPECT_EQ(x.get(), (std::vector<int64_t>{1, 2, 3}));
  });
}

struct NcclFailure : testing::Test {
  void TearDown() override { emulator::set_nccl_faults({}); }
};

TEST_F(NcclFailure, TheWatchdogNamesTheRankThatDoesNotComeAndEndsTheWait) {
  std::atomic<bool> over{false};
  std::atomic<int> left{0};
  const Error error = error_of([&] {
    on_gpus(3, {.timeout_s = 0.5}, [&](World& below, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 3, 3, "tensor"), Lane::critical);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      comm->all_reduce(rank.ex, x.all()).join(rank.ex);
      if (below.rank() == 1) {
        while (!over) std::this_thread::yield();
        return;
      }
      try {
        comm->reduce_scatter(rank.ex, x.all(), x.part(comm->chunk(300))).join(rank.ex);
        x.get();  // the host waits for the device, which waits for rank 1: until the communicators are aborted
        comm->all_reduce(rank.ex, x.all()).join(rank.ex);
        ADD_FAILURE() << "an operation that rank 1 took no part in";
      } catch (...) {
        if (++left == 2) over = true;
        throw;
      }
    });
  });
  EXPECT_EQ(error.code(), Code::comm);
  EXPECT_TRUE(contains(error.what(),
                       "reduce_scatter along tensor (operation 2 there, lane critical) was not done in 0.5 s: rank 1 "
                       "has not come to it (it has started 1 there)"))
      << error.what();
}

TEST_F(NcclFailure, AnOperationThatHangsOnTheDeviceIsReported) {
  emulator::set_nccl_faults({.hanging_device = 1, .hang_from = 1});
  const Error error = error_of([&] {
    on_gpus(2, {.timeout_s = 0.4}, [&](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::grads);
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
                       "all_reduce along data (operation 2 there, lane grads) was not done in 0.4 s: all "
                       "its ranks have started it and answer"))
      << error.what();
}

TEST_F(NcclFailure, ABrokenCommunicatorEndsAllRanks) {
  std::atomic<int> left{0};
  const Error error = error_of([&] {
    on_gpus(2, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::grads);
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
                       "along data by NCCL: remote process exited or there was a network error: emulated "
                       "details (NCCL_DEBUG=INFO"))
      << error.what();
  EXPECT_EQ(left, 2);
}

TEST_F(NcclFailure, AnErrorOfOneRankReleasesTheOthers) {
  const Error error = error_of([&] {
    on_gpus(3, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 3), Lane::grads);
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
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::grads);
      rank.world->connect();
      OnGpu<float> x(rank, std::vector<float>(300, 1.0f));
      if (rank.world->rank() == 1) {
        rank.world->control().barrier();  // never starts what rank 0 has open
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
  EXPECT_TRUE(contains(error.what(), "connection of 2 ranks by NCCL was not done in 0.3 s")) << error.what();
}

TEST(NcclFailureOfUse, CommunicatorsAreConnectedFirst) {
  const Error error = error_of([] {
    on_gpus(2, {.timeout_s = 60}, [](World&, GpuRank& rank) {
      const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Lane::grads);
      OnGpu<float> x(rank, std::vector<float>(3));
      comm->all_reduce(rank.ex, x.all()).join(rank.ex);
    });
  });
  EXPECT_EQ(error.code(), Code::internal);
  EXPECT_TRUE(contains(error.what(), "before the world is connected")) << error.what();
}

TEST(GpuTransport, SaysWhatKeepsNcclAway) {
  const GpuPlace a{"a", "0000:01:00.0"}, b{"a", "0000:02:00.0"}, other_host{"b", "0000:01:00.0"};
  EXPECT_EQ(obstacle_to_nccl({a, b, other_host}), "");
  EXPECT_EQ(obstacle_to_nccl({b, a, other_host, a, a}), "ranks 1, 3 and 4 share GPU 0000:01:00.0 of host a");
  EXPECT_EQ(obstacle_to_nccl({a, std::nullopt}), "rank 1 has no GPU");
}

TEST(GpuTransport, IsChosenByKeyAndMachine) {
  const auto choose = [](int devices, const std::string& asked) {
    GpuTransport chosen;
    emulator::set_devices(devices);
    run_on_threads(2, {.timeout_s = 60}, [&](World& world) {
      const auto device = device::cuda::make_device(world.rank() % devices, 1);
      const GpuTransport mine = choose_gpu_transport(world, *device, asked);
      EXPECT_EQ(gpu_world(world, *device, mine) != nullptr, mine.nccl);
      if (world.rank() == 1) chosen = mine;
    });
    return chosen;
  };
  EXPECT_TRUE(choose(2, "nccl").nccl);
  EXPECT_EQ(choose(2, "nccl").reason, "NCCL 2.28.9, as asked");
  EXPECT_FALSE(choose(2, "threads").nccl);
  EXPECT_EQ(choose(2, "threads").reason, "through the host (threads): as asked");
  const Error error = error_of([&] { choose(1, "nccl"); });
  EXPECT_EQ(error.code(), Code::plan);
  EXPECT_TRUE(contains(error.what(), "parallel.transport = \"nccl\": ranks 0 and 1 share GPU 0000:00:00.0 of host "))
      << error.what();
  run_on_threads(2, {.timeout_s = 60}, [&](World& world) {
    device::CpuDevice cpu(1);
    EXPECT_EQ(choose_gpu_transport(world, cpu, "auto").reason, "");
    EXPECT_EQ(error_of([&] { choose_gpu_transport(world, cpu, "nccl"); }).code(), Code::plan);
  });
  EXPECT_FALSE(choose_gpu_transport(*solo_world(), device::CpuDevice(1), "nccl").nccl);
}

}  // namespace
}  // namespace trainer::comm

namespace trainer::tests {
namespace {

class TrainingByNccl : public testing::TestWithParam<config::Arch> {};
INSTANTIATE_TEST_SUITE_P(Models, TrainingByNccl, testing::Values(config::Arch::gpt2, config::Arch::llama),
                         [](const auto& param) { return param.param == config::Arch::gpt2 ? "gpt2" : "llama"; });

TEST_P(TrainingByNccl, FollowsOneRankInEveryLayout) {
  emulator::set_devices(4);
  const HowToRun alone{.device = [](int rank) { return device::cuda::make_device(rank, 1); }};
  HowToRun by_nccl = alone;
  by_nccl.carrier = [](comm::World& world, device::Device& device) { return comm::nccl::make_world(world, device); };
  config::Config c = tiny_config(GetParam());
  c.optim.lr = 1e-3;
  c.model.n_head = 2;
  c.model.n_kv_head = 2;
  c.model.seq_len = 12;
  const Result one = train(c, DType::f32, 2, alone);
  for (const auto& [tensor, data, zero, sequence] : {std::tuple{2, 1, 0, false},
                                                     {2, 1, 0, true},
                                                     {1, 2, 0, false},
                                                     {1, 2, 1, false},
                                                     {2, 2, 0, true},
                                                     {2, 2, 1, true}}) {
    if (GetParam() == config::Arch::llama && tensor * data < 4) continue;
    SCOPED_TRACE(format("tensor {} data {} zero {} sequence {}", tensor, data, zero, sequence));
    config::Config many = c;
    many.parallel.tensor = tensor;
    many.parallel.data = data;
    many.parallel.zero_stage = zero;
    many.parallel.sequence_parallel = sequence;
    const Result result = train(many, DType::f32, 2, by_nccl);
    EXPECT_EQ(emulator::live_nccl_communicators(), 0);
    for (int rank = 0; rank < tensor * data; ++rank) EXPECT_FALSE(emulator::take_nccl_log(rank).empty());
    EXPECT_TRUE(result.start == one.start);
    expect_same_gradients(result.gradients, one.gradients, 1e-5);
    for (size_t n = 0; n < one.losses.size(); ++n) EXPECT_NEAR(result.losses[n], one.losses[n], 1e-6 * one.losses[n]);
    train::CommBytes predicted = result.predicted;
    for (auto& [axis, operations] : predicted)
      for (auto& [operation, count] : operations) count *= 2;
    EXPECT_EQ(result.measured, predicted);
    if (data * tensor == 4 && zero == 1) expect_same_bits(train(many, DType::f32, 2, by_nccl), result);  // once more
  }
}

}  // namespace
}  // namespace trainer::tests
