// Operations on different channels may complete in any order without changing results: purposes, overlapping groups,
// long queues, random delays.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "unit/comm/collective_cases.h"

namespace trainer::comm {
namespace {

/// Results of all ranks by (rank, name), for comparing runs.
class Results {
 public:
  template <typename T>
  void keep(int rank, const std::string& name, const std::vector<T>& data) {
    const std::lock_guard lock(mutex_);
    all_[{rank, name}].append(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T));
  }
  bool operator==(const Results& other) const { return all_ == other.all_; }
  bool empty() const { return all_.empty(); }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::string> all_;
};

/// Return the ranks in this rank's row and column of a mesh of two rows.
std::vector<int> row_of(const World& world) {
  const int columns = world.size() / 2;
  std::vector<int> members(static_cast<size_t>(columns));
  std::iota(members.begin(), members.end(), world.rank() / columns * columns);
  return members;
}
std::vector<int> column_of(const World& world) {
  const int columns = world.size() / 2, column = world.rank() % columns;
  return {column, column + columns};
}

/// Runs four operations for each of three purposes along rows and columns, all in flight at once.
void busy_step(World& world, Results& results) {
  Rig rig;
  struct Line {
    std::unique_ptr<Communicator> comm;
    std::vector<float> reduced, scattered, gathered, sent, received, shifted;
    Ticket tickets[4];
  };
  std::vector<Line> lines;
  for (const Purpose purpose : {Purpose::grads, Purpose::critical, Purpose::weights}) {
    lines.push_back({world.communicator(rig.device, group_of(world, row_of(world), 1, "row"), purpose)});
    lines.push_back({world.communicator(rig.device, group_of(world, column_of(world), 2, "column"), purpose)});
  }
  int number = 0;
  for (Line& line : lines) {
    const int64_t n = 7001 + 1000 * number;
    const Chunk mine = line.comm->chunk(n);
    line.reduced = values<float>(world.rank(), n, static_cast<uint64_t>(++number));
    line.gathered.resize(static_cast<size_t>(n));
    line.scattered = values<float>(world.rank(), mine.count, 99);
    line.sent = values<float>(world.rank(), 36, 7);
    line.received.resize(line.sent.size());
    line.tickets[0] = line.comm->all_reduce(rig.ex, tensor_of(line.reduced));
    line.tickets[1] = line.comm->all_gather(rig.ex, tensor_of(line.scattered), tensor_of(line.gathered));
    line.tickets[2] = line.comm->all_to_all(rig.ex, tensor_of(line.sent), tensor_of(line.received));
    line.shifted.resize(line.sent.size());
    line.tickets[3] = line.comm->shift(rig.ex, tensor_of(line.sent), tensor_of(line.shifted));
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)  // joined in a different order than started
    for (Ticket& ticket : line->tickets) ticket.join(rig.ex);
  for (size_t i = 0; i < lines.size(); ++i) {
    results.keep(world.rank(), format("{} reduced", i), lines[i].reduced);
    results.keep(world.rank(), format("{} gathered", i), lines[i].gathered);
    results.keep(world.rank(), format("{} received", i), lines[i].received);
    results.keep(world.rank(), format("{} shifted", i), lines[i].shifted);
  }
}

TEST(Ordering, RowsAndColumnsOfAMeshReduceTheirOwn) {
  run_on_threads(6, {}, [](World& world) {
    Rig rig;
    const int row = world.rank() / 3, column = world.rank() % 3;
    const auto along_row = world.communicator(rig.device, group_of(world, row_of(world), 1, "row"), Purpose::critical);
    const auto along_column =
        world.communicator(rig.device, group_of(world, {column, column + 3}, 2, "column"), Purpose::critical);
    std::vector<int32_t> a(10000, 1 << world.rank()), b = a;
    Ticket first = along_row->all_reduce(rig.ex, tensor_of(a)), second = along_column->all_reduce(rig.ex, tensor_of(b));
    second.join(rig.ex);
    first.join(rig.ex);
    EXPECT_EQ(a, std::vector<int32_t>(10000, row == 0 ? 0b111 : 0b111000));
    EXPECT_EQ(b, std::vector<int32_t>(10000, 0b1001 << column));
    EXPECT_EQ(rig.meter.comm().at({1, CommOp::all_reduce, DType::i32}).wire_bytes, 2 * 2 * 10000 * 4);
    EXPECT_EQ(rig.meter.comm().at({2, CommOp::all_reduce, DType::i32}).wire_bytes, 2 * 1 * 10000 * 4);
  });
}

TEST(Ordering, PurposesAndSegmentsInFlightDoNotChangeABit) {
  Results three, one;
  run_on_threads(6, {.lanes = 3}, [&](World& world) { busy_step(world, three); });
  run_on_threads(6, {.lanes = 1}, [&](World& world) { busy_step(world, one); });
  EXPECT_FALSE(three.empty());
  EXPECT_TRUE(three == one);
}

TEST(Ordering, AnOperationForAnotherPurposeIsNotHeldUp) {
  run_on_threads(2, {}, [](World& world) {
    Rig rig;
    const auto grads = world.communicator(rig.device, group_of(world, 2), Purpose::grads);
    const auto critical = world.communicator(rig.device, group_of(world, 2), Purpose::critical);
    std::vector<double> late(5000, 1.0), quick(10, 1.0);
    Ticket ticket;
    if (world.rank() == 0) ticket = grads->all_reduce(rig.ex, tensor_of(late));  // rank 1 has not started it yet
    critical->all_reduce(rig.ex, tensor_of(quick)).join(rig.ex);
    EXPECT_EQ(quick[9], 2.0);
    if (world.rank() == 1) ticket = grads->all_reduce(rig.ex, tensor_of(late));
    ticket.join(rig.ex);
    EXPECT_EQ(late[4999], 2.0);
  });
}

TEST(Ordering, ThousandsOfOperationsCanWait) {
  run_on_threads(3, {}, [](World& world) {
    Rig rig;
    const auto comm = world.communicator(rig.device, group_of(world, 3), Purpose::grads);
    constexpr int kOperations = 3000;
    std::vector<std::vector<int64_t>> data;
    std::vector<Ticket> tickets;
    for (int i = 0; i < kOperations; ++i) data.emplace_back(static_cast<size_t>(1 + i % 50), world.rank() + i);
    for (auto& x : data) tickets.push_back(comm->all_reduce(rig.ex, tensor_of(x)));
    for (Ticket& ticket : tickets) ticket.join(rig.ex);
    for (int i = 0; i < kOperations; ++i) ASSERT_EQ(data[static_cast<size_t>(i)].back(), 3 + 3 * i);
  });
}

/// Runs one operation of each kind of schedule, each for a different purpose, all in flight at once.
void light_step(World& world, Exec& ex, const std::vector<std::unique_ptr<Communicator>>& lanes, Results& results) {
  const int64_t n = kDirectElements + 100;
  std::vector<float> ring = values<float>(world.rank(), n), direct = values<float>(world.rank(), 50);
  std::vector<float> pieces = values<float>(world.rank(), 300), moved(pieces.size());
  Ticket first = lanes[0]->all_reduce(ex, tensor_of(ring)), second = lanes[1]->all_reduce(ex, tensor_of(direct));
  lanes[2]->all_to_all(ex, tensor_of(pieces), tensor_of(moved)).join(ex);
  second.join(ex);
  first.join(ex);
  results.keep(world.rank(), "ring", ring);
  results.keep(world.rank(), "direct", direct);
  results.keep(world.rank(), "moved", moved);
}

TEST(Ordering, AThousandRunsUnderRandomDelaysGiveTheSameBits) {
  constexpr int kRuns = 1000;
  const auto runs_under = [](const WorldOptions& options, std::vector<Results>& results) {
    run_on_threads(3, options, [&](World& world) {
      Rig rig;
      std::vector<std::unique_ptr<Communicator>> lanes;
      for (const Purpose purpose : {Purpose::grads, Purpose::weights, Purpose::critical})
        lanes.push_back(world.communicator(rig.device, group_of(world, 3), purpose));
      for (Results& one : results) light_step(world, rig.ex, lanes, one);
    });
  };
  std::vector<Results> calm(1), delayed(kRuns);
  runs_under({}, calm);
  std::atomic<uint64_t> draws{0}, late{0};
  const auto delay = [&](int rank) {  // no delay for most messages, up to 200 µs for one in sixteen
    const uint64_t h = (++draws * 0x9e3779b97f4a7c15u) ^ (static_cast<uint64_t>(rank) << 40);
    if ((h >> 60) != 0) return 0.0;
    ++late;
    return static_cast<double>((h >> 32) & 0xff) * 0.8e-6;
  };
  runs_under({.timeout_s = 60, .delay = delay}, delayed);
  EXPECT_FALSE(calm[0].empty());
  EXPECT_EQ(std::count(delayed.begin(), delayed.end(), calm[0]), kRuns);
  EXPECT_GT(late, 500u);
}

}  // namespace
}  // namespace trainer::comm
