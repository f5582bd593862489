#include <atomic>
#include <thread>

#include "base/clock.h"

#include "unit/comm/rig.h"

namespace trainer::comm {
namespace {

template <typename Body>
void between_two(const Body& body) {
  run_on_threads(2, {.timeout_s = 60}, [&](World& world) {
    Rig rig;
    const auto comm = world.communicator(rig.device, group_of(world, 2), Purpose::grads);
    body(world, rig, *comm);
  });
}

TEST(Ticket, IsAnInternalErrorWhenItIsNeverJoined) {
  expect_error(Code::internal, {"all_reduce", "never joined"}, [] {
    between_two([](World&, Rig& rig, Communicator& comm) {
      std::vector<float> x(10, 1.0f);
      const Ticket ticket = comm.all_reduce(rig.ex, tensor_of(x));
    });
  });
}

TEST(Ticket, IsJoinedOnceAndNotOverwritten) {
  between_two([](World& world, Rig& rig, Communicator& comm) {
    std::vector<float> x(10, 1.0f);
    Ticket ticket = comm.all_reduce(rig.ex, tensor_of(x));
    EXPECT_TRUE(ticket.is_open());
    EXPECT_THROW(ticket = Ticket(), Error);
    Ticket moved = std::move(ticket);
    EXPECT_FALSE(ticket.is_open());
    moved.join(rig.ex);
    EXPECT_FALSE(moved.is_open());
    EXPECT_THROW(moved.join(rig.ex), Error);
    EXPECT_THROW(Ticket().join(rig.ex), Error);
    EXPECT_EQ(x[9], 2.0f);
    world.control().barrier();
  });
}

TEST(Ticket, LetsTheOriginalErrorThroughWhenAnExceptionUnwinds) {
  expect_error(Code::data, {"a bad file"}, [] {
    between_two([](World& world, Rig& rig, Communicator& comm) {
      std::vector<float> x(100000, 1.0f);
      if (world.rank() == 1) {
        world.control().barrier();  // never starts the operation that rank 0 has in flight
        return;
      }
      Ticket ticket = comm.all_reduce(rig.ex, tensor_of(x));
      throw Error(Code::data, "a bad file");
    });
  });
}

TEST(Ticket, KeepsScratchUntilItIsJoined) {
  between_two([](World&, Rig& rig, Communicator& comm) {
    Scratch a = rig.ex.take("a", {5000}, DType::f32), b = rig.ex.take("b", {5000}, DType::f32);
    std::fill_n(a.tensor().as<float>(), 5000, 1.5f);
    const float* memory = a.tensor().as<float>();
    Ticket ticket = comm.all_reduce(rig.ex, a);
    ticket.keep(std::move(a));
    ticket.keep(std::move(b));
    EXPECT_FALSE(a);
    EXPECT_THROW(ticket.keep(rig.ex.take("c", {1}, DType::f32)), Error);
    Ticket moved = std::move(ticket);
    EXPECT_NE(memory, nullptr);
    moved.join(rig.ex);
  });
}

TEST(Ticket, ChargesWaitingToTheAxis) {
  std::atomic<bool> go{false};
  between_two([&](World& world, Rig& rig, Communicator& comm) {
    std::vector<float> x(10, 1.0f);
    if (world.rank() == 1) {
      while (!go) std::this_thread::yield();
      comm.all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
      return;
    }
    const double begin = now_seconds();
    Ticket ticket = comm.all_reduce(rig.ex, tensor_of(x));
    go = true;
    ticket.join(rig.ex);
    const double waited = rig.meter.comm().at({1, CommOp::all_reduce, DType::f32}).wait_seconds;
    EXPECT_GT(waited, 0);
    EXPECT_LE(waited, now_seconds() - begin);
  });
}

TEST(Communicator, RejectsWhatDoesNotFit) {
  const auto world = solo_world();
  Rig rig;
  const auto comm = world->communicator(rig.device, group_of(*world, 1), Purpose::grads);
  std::vector<float> x(10), y(9);
  std::vector<double> z(10);
  std::vector<uint8_t> bytes(10);
  EXPECT_THROW(static_cast<void>(comm->all_gather(rig.ex, tensor_of(x), tensor_of(y))), Error);
  EXPECT_THROW(static_cast<void>(comm->all_to_all(rig.ex, tensor_of(x), tensor_of(z))), Error);
  EXPECT_THROW(static_cast<void>(comm->all_to_all(rig.ex, tensor_of(x), tensor_of(x))), Error);
  EXPECT_THROW(static_cast<void>(comm->all_reduce(rig.ex, tensor_of(bytes))), Error);
  EXPECT_THROW(static_cast<void>(comm->broadcast(rig.ex, tensor_of(x), 1)), Error);
  const Tensor apart{reinterpret_cast<std::byte*>(x.data()), {2, 2}, DType::f32, 5};
  EXPECT_THROW(static_cast<void>(comm->all_reduce(rig.ex, apart)), Error);
}

TEST(Communicator, TellsThatRanksRunDifferentOperations) {
  expect_error(Code::internal, {"different operations"}, [] {
    between_two([](World& world, Rig& rig, Communicator& comm) {
      std::vector<float> x(world.rank() == 0 ? 100 : 200);
      comm.all_reduce(rig.ex, tensor_of(x)).join(rig.ex);
    });
  });
}

TEST(Communicator, ExchangesPiecesOfDifferentLengthsOnly) {
  const auto world = solo_world();
  Rig rig;
  const auto comm = world->communicator(rig.device, group_of(*world, 1), Purpose::grads);
  std::vector<float> x = {1, 2, 3}, y(3), none;
  const std::vector<int64_t> three = {3}, two = {2}, zero = {0}, pair = {1, 2};
  comm->all_to_all(rig.ex, tensor_of(x), tensor_of(y), {three, three, 0, 3}).join(rig.ex);
  EXPECT_EQ(y, x);
  EXPECT_TRUE(rig.meter.comm().empty());
  comm->all_to_all(rig.ex, tensor_of(none), tensor_of(none), {zero, zero, 0, 0}).join(rig.ex);
  for (const auto& [send, receive] :
       {std::pair(three, two), std::pair(two, three), std::pair(two, two), std::pair(pair, three)})
    EXPECT_THROW(static_cast<void>(comm->all_to_all(rig.ex, tensor_of(x), tensor_of(y), {send, receive, 0, 3})), Error);
}

TEST(Communicator, ExchangesNothingOnTheWireWhereAllPiecesAreOwn) {
  between_two([](World& world, Rig& rig, Communicator& comm) {
    std::vector<float> x(world.rank() == 0 ? 3 : 0, 7.0f), y(x.size());
    const std::vector<int64_t> counts = {world.rank() == 0 ? 3 : 0, 0};
    for (int call = 0; call < 5; ++call)
      comm.all_to_all(rig.ex, tensor_of(x), tensor_of(y), {counts, counts, 0, 3}).join(rig.ex);
    EXPECT_EQ(y, x);
    const CommCount& count = rig.meter.comm().at({1, CommOp::all_to_all, DType::f32});
    EXPECT_EQ(count.calls, 5);
    EXPECT_EQ(count.wire_bytes, 0);
    std::vector<float> sum = {1};  // operations that follow still match
    comm.all_reduce(rig.ex, tensor_of(sum)).join(rig.ex);
    EXPECT_EQ(sum[0], 2);
  });
}

TEST(Communicator, NamesBothRanksWhoseCountsDisagree) {
  expect_error(Code::internal, {"rank 0", "rank 1", "different operations"}, [] {
    between_two([](World& world, Rig& rig, Communicator& comm) {
      const bool first = world.rank() == 0;
      std::vector<float> x(first ? 5 : 2), y(first ? 2 : 6);  // rank 0 sends 5 elements, rank 1 expects 6
      const std::vector<int64_t> send = first ? std::vector<int64_t>{0, 5} : std::vector<int64_t>{2, 0};
      const std::vector<int64_t> receive = first ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{6, 0};
      comm.all_to_all(rig.ex, tensor_of(x), tensor_of(y), {send, receive, 7, 5}).join(rig.ex);
    });
  });
}

TEST(Communicator, ShiftsToTheNextRank) {
  const auto world = solo_world();
  Rig rig;
  const auto comm = world->communicator(rig.device, group_of(*world, 1), Purpose::grads);
  std::vector<float> x = {1, 2, 3}, y(3), shorter(2), none;
  comm->shift(rig.ex, tensor_of(x), tensor_of(y)).join(rig.ex);  // to itself
  EXPECT_EQ(y, x);
  EXPECT_TRUE(rig.meter.comm().empty());
  EXPECT_THROW(static_cast<void>(comm->shift(rig.ex, tensor_of(x), tensor_of(shorter))), Error);
  EXPECT_THROW(static_cast<void>(comm->shift(rig.ex, tensor_of(x), tensor_of(x))), Error);
  between_two([](World& world, Rig& rig, Communicator& comm) {
    std::vector<float> x(world.rank() == 0 ? 3 : 0), y(x.size()), none;
    comm.shift(rig.ex, tensor_of(none), tensor_of(none)).join(rig.ex);  // sends no message
    const CommCount& count = rig.meter.comm().at({1, CommOp::shift, DType::f32});
    EXPECT_EQ(count.calls, 1);
    EXPECT_EQ(count.wire_bytes, 0);
  });
}

TEST(Communicator, NamesBothRanksOfAShiftOfDifferentLengths) {
  expect_error(Code::internal, {"rank 0", "rank 1", "different operations"}, [] {
    between_two([](World& world, Rig& rig, Communicator& comm) {
      std::vector<float> x(world.rank() == 0 ? 5 : 6), y(x.size());
      comm.shift(rig.ex, tensor_of(x), tensor_of(y)).join(rig.ex);
    });
  });
}

}  // namespace
}  // namespace trainer::comm
