// Messages between two ranks: order, independence of other channels, waiting for busy and lost ranks.
#include <atomic>
#include <set>
#include <thread>

#include "base/clock.h"
#include "comm/gpu_transport.h"
#include "comm/stage_names.h"
#include "unit/comm/link_cases.h"

namespace trainer::comm {
namespace {

void busy_for(double seconds) {
  for (const double begin = now_seconds(); now_seconds() - begin < seconds;) std::this_thread::yield();
}

/// The links of two ranks in one direction of the ring: from this rank, and to it.
struct Pair {
  explicit Pair(World& world, Rig& rig)
      : out(world.communicator(rig.device, link_group(world, world.rank(), Way::forward), Purpose::critical)),
        in(world.communicator(rig.device, link_group(world, 1 - world.rank(), Way::forward), Purpose::critical)) {}
  std::unique_ptr<Communicator> out, in;
};

template <typename T>
class Links : public testing::Test {};
using Sent = testing::Types<double, float, bf16, int32_t, uint8_t>;
TYPED_TEST_SUITE(Links, Sent);

TYPED_TEST(Links, MoveEveryElementAroundARingInBothDirections) {
  for (int g = 1; g <= 5; ++g) run_on_threads(g, {}, [](World& world) { check_links<TypeParam>(world); });
}

TEST(LinkNumbers, AreDifferentOnEveryRank) {
  for (int g = 2; g <= 65; ++g)
    for (int rank = 0; rank < g; ++rank) {
      const int before = (rank + g - 1) % g, after = (rank + 1) % g;
      const std::set<int> numbers = {link_in_ring(g, rank, Way::forward), link_in_ring(g, before, Way::forward),
                                     link_in_ring(g, rank, Way::back), link_in_ring(g, after, Way::back)};
      EXPECT_EQ(numbers.size(), 4u) << rank << " of " << g;
      EXPECT_GE(*numbers.begin(), 1);
      EXPECT_LE(*numbers.rbegin(), kLinks);
    }
}

TEST(Ordering, MessagesKeepTheirOrderUnderRandomDelays) {
  std::atomic<uint64_t> draws{0};
  const auto delay = [&](int rank) {
    const uint64_t h = (++draws * 0x9e3779b97f4a7c15u) ^ (static_cast<uint64_t>(rank) << 40);
    return (h >> 62) != 0 ? 0.0 : static_cast<double>((h >> 32) & 0xff) * 4e-6;
  };
  run_on_threads(3, {.timeout_s = 60, .delay = delay}, [](World& world) {
    for (int run = 0; run < 50; ++run) check_links<float>(world, {1, 5000, 0, 2, 70000, 3, 1, 1});
  });
  EXPECT_GT(draws, 1000u);
}

TEST(Ordering, AReceiveStartedAheadHoldsUpNoOtherOperation) {
  for (const int lanes : {1, 3})
    run_on_threads(2, {.timeout_s = 60, .lanes = lanes}, [](World& world) {
      Rig rig;
      Pair links(world, rig);
      const auto all = world.communicator(rig.device, group_of(world, 2), Purpose::critical);
      const float own = static_cast<float>(world.rank() + 1);
      std::vector<float> sum(5000, own), sent(300, own), received(300);
      Ticket receive = links.in->send(rig.ex, tensor_of(received));
      all->all_reduce(rig.ex, tensor_of(sum)).join(rig.ex);  // the peer sends later
      Ticket send = links.out->send(rig.ex, tensor_of(sent));
      world.control().barrier();
      receive.join(rig.ex);
      send.join(rig.ex);
      EXPECT_EQ(sum[4999], 3);
      EXPECT_EQ(received, std::vector<float>(300, 3 - own));
      EXPECT_GT(rig.meter.comm().at({1, CommOp::send, DType::f32}).wait_seconds, 0);
    });
}

TEST(Communicator, SendsOnLinksOnly) {
  run_on_threads(3, {}, [](World& world) {
    Rig rig;
    std::vector<float> x(10, 1.0f);
    const auto all = world.communicator(rig.device, group_of(world, 3), Purpose::grads);
    expect_error(Code::internal, {"send along data", "requires a link"},
                 [&] { static_cast<void>(all->send(rig.ex, tensor_of(x))); });
    const auto link = world.communicator(rig.device, link_group(world, world.rank(), Way::forward), Purpose::critical);
    expect_error(Code::internal, {"all_reduce along stage", "link"},
                 [&] { static_cast<void>(link->all_reduce(rig.ex, tensor_of(x))); });
    Group wide = group_of(world, 3);
    wide.link = 1;
    expect_error(Code::internal, {"link 1", "3 ranks"},
                 [&] { world.communicator(rig.device, wide, Purpose::critical); });
    Group high = link_group(world, world.rank(), Way::forward);
    high.link = kLinks + 1;
    EXPECT_THROW(world.communicator(rig.device, high, Purpose::critical), Error);
  });
}

TEST(Communicator, NamesBothRanksOfAMessageOfAnUnexpectedLength) {
  expect_error(Code::internal, {"rank 0", "20 bytes", "rank 1", "24 bytes", "different operations"}, [] {
    run_on_threads(2, {.timeout_s = 60}, [](World& world) {
      Rig rig;
      Pair links(world, rig);
      std::vector<float> x(world.rank() == 0 ? 5 : 6);
      (world.rank() == 0 ? links.out : links.in)->send(rig.ex, tensor_of(x)).join(rig.ex);
    });
  });
}

TEST(DryWorld, CountsMessagesAsTheirSender) {
  device::DryDevice device(1);
  Arena arena(device);
  for (const int rank : {0, 1}) {
    const auto world = dry_world(3, rank);
    Meter meter;
    Exec ex{device, arena, meter};
    const auto link = world->communicator(device, link_group(*world, 0, Way::forward), Purpose::critical);
    link->send(ex, {nullptr, {5, 7}, DType::bf16, 0}).join(ex);
    EXPECT_EQ(device.memory_total(), 0);
    ASSERT_EQ(meter.comm().size(), rank == 0 ? 1u : 0u);
    if (rank == 1) continue;
    const CommCount count = meter.comm().at({1, CommOp::send, DType::bf16});
    EXPECT_EQ(count.calls, 1);
    EXPECT_EQ(count.elements, 35);
    EXPECT_EQ(count.wire_bytes, 70);
  }
}

TEST(DryWorld, CountsTheMemoryOfNcclPerLink) {
  device::DryDevice device(1);
  const auto dry = dry_world(3, 0), world = dry_nccl_world(*dry, device, 1);
  std::vector<std::unique_ptr<Communicator>> links;
  for (const int from : {0, 2})
    for (int repeat = 0; repeat < 2; ++repeat)  // communicators of the same link share NCCL's
      links.push_back(world->communicator(device, link_group(*world, from, Way::forward), Purpose::critical));
  EXPECT_EQ(device.memory().at("nccl").peak, 2 * (int64_t{96} << 20));
}

TEST(Watchdog, NamesThePeerOfALink) {
  // Rank 1 waits for a second message, but rank 0 has ended after the first.
  expect_error(Code::comm,
               {"rank 1 (stage 1) has been waiting for rank 0 (stage 0) for",
                "in send along stage (operation 2 of link 1)", "rank 0 (stage 0) has ended without starting it"},
               [] {
                 run_on_threads(2, {.timeout_s = 0.2}, [](World& world) {
                   name_stages(world, 2);
                   Rig rig;
                   Pair links(world, rig);
                   std::vector<float> x(100, 1.0f);
                   const auto& link = world.rank() == 0 ? links.out : links.in;
                   link->send(rig.ex, tensor_of(x)).join(rig.ex);
                   if (world.rank() == 1) link->send(rig.ex, tensor_of(x)).join(rig.ex);
                 });
               });
}

TEST(Watchdog, EndsMessagesOfRanksThatWaitForEachOther) {
  expect_error(Code::comm, {"in send along stage (operation 1 of link", "has itself been waiting"}, [] {
    run_on_threads(2, {.timeout_s = 0.3}, [](World& world) {
      Rig rig;
      Pair links(world, rig);
      std::vector<float> x(100, 1.0f);
      links.in->send(rig.ex, tensor_of(x)).join(rig.ex);  // both receive first
    });
  });
}

TEST(Watchdog, IsPatientWithLinksOfBusyRanks) {
  // A rank must answer within half the timeout, which is longer than a busy machine delays its progress thread.
  constexpr double kTimeout = 1, kBusy = 2.5 * kTimeout;
  double waited = 0;
  const double begin = now_seconds();  // before both ranks: rank 1 may start to wait when rank 0 has long been busy
  run_on_threads(2, {.timeout_s = kTimeout}, [&](World& world) {
    Rig rig;
    Pair links(world, rig);
    std::vector<float> x(100, static_cast<float>(world.rank() + 1)), y(100);
    // Rank 0 starts to receive and is then busy; meanwhile rank 1 waits for its message, and sends its own only then.
    Ticket receive = links.in->send(rig.ex, tensor_of(y));
    if (world.rank() == 0) {
      busy_for(kBusy);
      links.out->send(rig.ex, tensor_of(x)).join(rig.ex);
      receive.join(rig.ex);
    } else {
      receive.join(rig.ex);
      waited = now_seconds() - begin;
      links.out->send(rig.ex, tensor_of(x)).join(rig.ex);
    }
    EXPECT_EQ(y, std::vector<float>(100, static_cast<float>(2 - world.rank())));
  });
  EXPECT_GE(waited, kBusy);
}

}  // namespace
}  // namespace trainer::comm
