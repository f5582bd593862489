// The NCCL communicators over an emulated NCCL whose ranks are threads, each on an emulated device: every operation
// with exact sums, intersecting groups, channels, and the counts of bytes.
#include <atomic>
#include <thread>

#include "cuda/nccl_rig.h"
#include "unit/comm/link_cases.h"

namespace trainer::comm {
namespace {

/// Returns integers that bf16 represents exactly, as it does sums of eight of them: any order of addition is exact.
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

class Cases {
 public:
  /// Communicates among the first `size` ranks of the world; all ranks must call it.
  Cases(GpuRank& rank, int size) : rank_(rank), g_(size), inside_(rank.world->rank() < size) {
    if (inside_)
      comm_ = rank.world->communicator(*rank.device, group_of(*rank.world, size, static_cast<uint32_t>(size)),
                                       Purpose::grads);
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
    OnGpu<T> passed(rank_, values<T>(c.rank(), n, salt)), arrived(rank_, std::vector<T>(static_cast<size_t>(n)));
    check(CommOp::shift, n, sizeof(T), [&] { return c.shift(rank_.ex, passed.all(), arrived.all()); });
    EXPECT_TRUE(same_bits(arrived.get(), values<T>((c.rank() + g_ - 1) % g_, n, salt)))
        << "shift of " << n << " among " << g_;
    const UnevenPieces pieces(g_, k);
    const std::vector<int64_t> out_counts = pieces.sent_by(c.rank()), in_counts = pieces.received_by(c.rank());
    OnGpu<T> parts(rank_, values<T>(c.rank(), UnevenPieces::sum(out_counts), salt));
    OnGpu<T> gained(rank_, std::vector<T>(static_cast<size_t>(UnevenPieces::sum(in_counts))));
    check(
        CommOp::all_to_all, pieces.payload(), sizeof(T),
        [&] {
          return c.all_to_all(rank_.ex, parts.all(), gained.all(),
                              {out_counts, in_counts, pieces.wire(), pieces.longest()});
        },
        pieces.wire());
    EXPECT_TRUE(same_bits(gained.get(),
                          pieces.expected<T>(c.rank(), [&](int rank, int64_t i) { return value<T>(rank, i, salt); })))
        << "uneven all_to_all of about " << k << " among " << g_;
  }

  /// Requires the byte counts that every transport has.
  void check(CommOp op, int64_t payload, int64_t unit, const std::function<Ticket()>& start, int64_t wire = -1) {
    rank_.meter = {};
    start().join(rank_.ex);
    const int64_t predicted = (wire < 0 ? wire_elements(op, g_, payload) : wire) * unit;
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
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::grads);
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

/// Runs three channels along rows and columns of a 2×2 mesh concurrently, and joins them in a different order.
void cross(GpuRank& rank) {
  const int me = rank.world->rank(), row = me / 2, column = me % 2;
  struct Line {
    std::unique_ptr<Communicator> comm;
    OnGpu<int32_t> sum, all, exchanged;
    std::vector<Ticket> tickets;
  };
  std::vector<Line> lines;
  for (const Purpose purpose : {Purpose::grads, Purpose::critical, Purpose::weights})
    for (const bool along_row : {true, false}) {
      const std::vector<int> members = along_row ? std::vector{row * 2, row * 2 + 1} : std::vector{column, column + 2};
      lines.push_back(
          {rank.world->communicator(
               *rank.device, group_of(*rank.world, members, along_row ? 1 : 2, along_row ? "row" : "column"), purpose),
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
    line.tickets.push_back(line.comm->all_to_all(rank.ex, line.sum.all(), line.exchanged.all()));
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    for (Ticket& ticket : line->tickets) ticket.join(rank.ex);
  for (Line& line : lines) {
    const std::vector<int>& members = line.comm->group().members;
    const int32_t sum = (1 << members[0]) + (1 << members[1]);
    EXPECT_EQ(line.sum.get(), std::vector<int32_t>(500, sum));
    EXPECT_EQ(line.exchanged.get(), std::vector<int32_t>(500, sum)) << "sent after the sum was there";
    EXPECT_EQ(line.all.get(), (std::vector<int32_t>{members[0], members[0], members[0], members[1], members[1],
                                                    members[1], members[1]}));
  }
}

TEST(NcclGroups, CrossOnOneLaneAndOnThree) {
  for (const int lanes : {0, 1, 3}) on_gpus(4, {.timeout_s = 60, .lanes = lanes}, [](World&, GpuRank& r) { cross(r); });
}

/// Sends around a ring of all ranks in both directions, all in flight at once, while all ranks reduce.
void send_around(GpuRank& rank) {
  World& world = *rank.world;
  const int g = world.size(), me = world.rank();
  struct Link {
    int from;
    std::unique_ptr<Communicator> comm;
    std::vector<OnGpu<float>> messages;
  };
  std::vector<Link> links;
  const auto all = world.communicator(*rank.device, group_of(world, g), Purpose::critical);
  for (const Way way : {Way::forward, Way::back})
    for (const int from : {me, (me + (way == Way::forward ? g - 1 : 1)) % g})
      links.push_back({from, world.communicator(*rank.device, link_group(world, from, way), Purpose::critical), {}});
  world.connect();
  emulator::take_nccl_log(me);
  OnGpu<float> sum(rank, std::vector<float>(5000, 1.0f));
  const std::vector<int64_t> sizes = {1, 3001, 0, 7};
  std::vector<Ticket> tickets;
  for (Link& link : links)
    for (const int64_t n : sizes) {
      const int number = link.comm->group().link;
      link.messages.emplace_back(rank, values<float>(link.from == me ? me : -2, n, static_cast<uint64_t>(number)));
      tickets.push_back(link.comm->send(rank.ex, link.messages.back().all()));
    }
  tickets.push_back(all->all_reduce(rank.ex, sum.all()));
  for (Ticket& ticket : tickets) ticket.join(rank.ex);
  for (Link& link : links)
    for (size_t i = 0; i < sizes.size(); ++i)
      EXPECT_TRUE(same_bits(link.messages[i].get(),
                            values<float>(link.from, sizes[i], static_cast<uint64_t>(link.comm->group().link))));
  EXPECT_EQ(sum.get(), std::vector<float>(5000, static_cast<float>(g)));
  const std::vector<std::string> log = emulator::take_nccl_log(me);
  EXPECT_EQ(std::ranges::count(log, "send 12004 bytes of 2"), 2);
  EXPECT_EQ(std::ranges::count(log, "receive 12004 bytes of 2"), 2);
  EXPECT_EQ(rank.meter.comm().at({1, CommOp::send, DType::f32}).wire_bytes, 2 * (1 + 3001 + 7) * 4);
}

TEST(NcclLinks, MoveMessagesAroundARingInBothDirections) {
  for (const int g : {2, 3, 4})
    for (const int lanes : {1, 3})
      on_gpus(g, {.timeout_s = 60, .lanes = lanes}, [](World&, GpuRank& rank) { send_around(rank); });
}

TEST(NcclLinks, HaveStreamsOfTheirOwn) {
  on_gpus(2, {.timeout_s = 60, .lanes = 1}, [](World& below, GpuRank& rank) {
    World& world = *rank.world;
    const auto all = world.communicator(*rank.device, group_of(world, 2), Purpose::critical);
    const auto in =
        world.communicator(*rank.device, link_group(world, 1 - world.rank(), Way::forward), Purpose::critical);
    const auto out = world.communicator(*rank.device, link_group(world, world.rank(), Way::forward), Purpose::critical);
    world.connect();
    below.control().barrier();
    EXPECT_EQ(emulator::streams_with_priority(emulator::kHighestPriority), 2 * 3);
    below.control().barrier();
    OnGpu<float> x(rank, std::vector<float>(100, 1.0f)), y(rank, std::vector<float>(100)), sum(rank, {1});
    Ticket receive = in->send(rank.ex, y.all());  // its message is sent only after the all-reduce
    all->all_reduce(rank.ex, sum.all()).join(rank.ex);
    EXPECT_EQ(sum.get(), std::vector<float>{2});
    out->send(rank.ex, x.all()).join(rank.ex);
    receive.join(rank.ex);
    EXPECT_EQ(y.get(), std::vector<float>(100, 1.0f));
  });
}

TEST(NcclOrder, StreamsHaveTheHighestPriority) {
  for (const int lanes : {0, 1, 2, 3})
    on_gpus(2, {.lanes = lanes}, [&](World& below, GpuRank&) {
      below.control().barrier();
      EXPECT_EQ(emulator::streams_with_priority(emulator::kHighestPriority), 2 * (lanes < 2 ? 1 : 3)) << lanes;
      below.control().barrier();
    });
}

TEST(NcclOrder, SeveralLanesStartInProgramOrderIfTheLibraryCan) {
  constexpr const char* kVariable = "NCCL_LAUNCH_ORDER_IMPLICIT";
  for (const int lanes : {0, 1, 2, 3})
    for (const bool old : {false, true}) {
      unsetenv(kVariable);
      emulator::set_nccl_faults({.old_version = old});
      ::testing::internal::CaptureStderr();
      on_gpus(2, {.lanes = lanes}, [](World&, GpuRank&) {});
      const std::string said = ::testing::internal::GetCapturedStderr();
      const char* const value = std::getenv(kVariable);
      EXPECT_EQ(value == nullptr ? "" : std::string(value), lanes > 1 && !old ? "1" : "") << lanes << old;
      EXPECT_EQ(said.find("older than 2.26 on 2 rank") != std::string::npos, lanes > 1 && old) << said;
    }
  emulator::set_nccl_faults({});
  unsetenv(kVariable);
}

TEST(NcclOrder, OperationsFollowTheComputeStreamAndItWaitsForThem) {
  on_gpus(2, {.timeout_s = 60}, [](World&, GpuRank& rank) {
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::critical);
    rank.world->connect();
    OnGpu<float> x(rank, std::vector<float>(1000, 1.0f)), y(rank, std::vector<float>(1000));
    for (int round = 0; round < 20; ++round) {
      rank.device->copy_rows(y.all().data, 0, x.all().data, 0, 1, x.all().bytes());  // earlier work: part of the sum
      Ticket ticket = comm->all_reduce(rank.ex, y.all());
      ticket.join(rank.ex);
      rank.device->copy_rows(x.all().data, 0, y.all().data, 0, 1, y.all().bytes());  // later work: sees the sum
    }
    EXPECT_EQ(x.get(), std::vector<float>(1000, 1 << 20));
  });
}

TEST(NcclOrder, StartingAndJoiningDoNotWaitOnTheHost) {
  std::atomic<bool> joined{false};
  on_gpus(2, {.timeout_s = 60}, [&](World&, GpuRank& rank) {
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::critical);
    rank.world->connect();
    OnGpu<float> x(rank, std::vector<float>(1000, 1.0f));
    if (rank.world->rank() == 1)
      while (!joined) std::this_thread::yield();  // rank 0 has continued without this rank
    comm->all_reduce(rank.ex, x.all()).join(rank.ex);
    joined = true;
    EXPECT_EQ(x.get(), std::vector<float>(1000, 2.0f));
  });
}

TEST(NcclOrder, ThousandsOfOperationsReuseTheirEvents) {
  on_gpus(2, {.timeout_s = 60}, [](World&, GpuRank& rank) {
    const auto comm = rank.world->communicator(*rank.device, group_of(*rank.world, 2), Purpose::grads);
    rank.world->connect();
    OnGpu<int64_t> x(rank, {1, 2, 3});
    for (int i = 0; i < 2000; ++i) {
      comm->all_reduce(rank.ex, x.all(), Reduce::max).join(rank.ex);
      if (i % 100 == 0) rank.device->synchronize();
    }
    EXPECT_EQ(x.get(), (std::vector<int64_t>{1, 2, 3}));
  });
}

}  // namespace
}  // namespace trainer::comm
