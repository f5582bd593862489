// Messages between stages: contents, order and bytes, for every list and with delayed messages.
#include "train/links.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/philox.h"
#include "comm/stage_names.h"
#include "rigs/messages.h"

namespace trainer::train {
namespace {

using sharding::Action, sharding::Message, sharding::PipelineSchedule, sharding::Stages;

constexpr int64_t kRows = 6, kWidth = 4, kMicroBatches = 6;

/// Returns the value of every element of a message.
float value_of(const Message& m) { return static_cast<float>(m.micro * 10'000 + m.from * 100 + m.to); }

/// Called before each action of a rank's list.
using Before = std::function<void(size_t action)>;

/// Runs this rank's list of `stages` twice, each of which has `tensor` ranks with copies. Expects contents, and the
/// bytes that it sends.
void run_list(comm::World& world, const Stages& stages, int tensor, int64_t micro_batches, const Before& before = {}) {
  const sharding::ModelSharding inner{.axes = {{"data", 1}, {"tensor", tensor}}, .layers = {{.count = 8}}};
  const sharding::ModelSharding s = sharding::on_mesh(add_stages(inner, stages), 1);
  device::CpuDevice device(1);
  mesh::Mesh mesh(world, device, parallel::mesh_shape(s));
  params::ParamStore store(device, DType::f32, &mesh);
  const parallel::Strategy strategy(mesh, store, s);
  comm::name_stages(world, stages.count);
  StageLinks links(device, mesh, s, strategy, {kRows}, kWidth, DType::f32);
  const auto list = lists_of(stages, micro_batches)[static_cast<size_t>(mesh.index("stage"))];
  Arena heap(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, heap, meter};
  int64_t messages = 0;
  for (int step = 0; step < 2; ++step) {
    links.begin_list(list);
    for (size_t a = 0; a < list.size(); ++a) {
      if (before) before(a);
      links.begin(ex, a);
      const Scratch received = links.take(ex, list[a]);
      const auto expected = received_by(list[a], stages);
      ASSERT_EQ(static_cast<bool>(received), expected.has_value());
      if (expected) {
        EXPECT_EQ(received.tensor().shape, (Shape{kRows, kWidth})) << "with copies";
        for (const float x : received.tensor().span<float>()) ASSERT_EQ(x, value_of(*expected));
      }
      Scratch x;
      if (const auto message = sent_by(list[a], stages)) {
        x = ex.take("x", {kRows, kWidth}, DType::f32);
        std::ranges::fill(x.tensor().span<float>(), value_of(*message));
        ++messages;
      }
      links.send(ex, list[a], std::move(x));
    }
    links.end_list(ex);
  }
  int64_t sent = 0;
  for (const auto& [key, count] : meter.comm())
    if (key.op == CommOp::send) sent += count.wire_bytes;
  EXPECT_EQ(sent, messages * kRows * kWidth * size_of(DType::f32) / tensor) << "each element crosses once";
}

/// Runs the lists of all ranks. `delay`: the longest of a message, in seconds.
void run_lists(const Stages& stages, int tensor, double delay) {
  SCOPED_TRACE(format("{}, {} copies", text_of(stages), tensor));
  comm::WorldOptions options{.timeout_s = 60};
  options.delay = [=, n = std::make_shared<std::atomic<uint64_t>>(0)](int) {
    return delay * static_cast<double>(philox_at(philox_key(1, "delay"), n->fetch_add(1)) % 100 + 1) / 100;
  };
  comm::run_on_threads(static_cast<int>(stages.count) * tensor, options,
                       [&](comm::World& world) { run_list(world, stages, tensor, kMicroBatches); });
}

TEST(StageLinks, BringWhatNeighboursSendInTheOrderOfTheLists) {
  for (const double delay : {0.0, 0.002})
    for (const int tensor : {1, 2}) {
      run_lists({.count = 2, .layers = {4, 4}}, tensor, delay);
      run_lists({.count = 3, .layers = {3, 3, 2}}, tensor, delay);
      run_lists({.count = 3, .schedule = PipelineSchedule::zb_h1, .layers = {3, 3, 2}}, tensor, delay);
      run_lists({.count = 2, .chunks = 2, .layers = {2, 2, 2, 2}}, tensor, delay);
      run_lists({.count = 3, .chunks = 2, .layers = {2, 2, 1, 1, 1, 1}}, tensor, delay);
    }
}

const std::array<Stages, 3> kKinds = {{{.count = 3, .layers = {3, 3, 2}},
                                       {.count = 3, .schedule = PipelineSchedule::zb_h1, .layers = {3, 3, 2}},
                                       {.count = 2, .chunks = 2, .layers = {2, 2, 2, 2}}}};

TEST(StageLinks, EndOnEveryRankIfOneFailsAtAnyAction) {
  for (const Stages& stages : kKinds) {
    const auto lists = lists_of(stages, 2);
    for (int stage = 0; stage < stages.count; ++stage)
      for (size_t action = 0; action < lists[static_cast<size_t>(stage)].size(); ++action) {
        SCOPED_TRACE(format("{}: stage {} at action {}", text_of(stages), stage, action));
        const double begin = now_seconds();
        comm::run_on_threads(static_cast<int>(stages.count), {.timeout_s = 60}, [&](comm::World& world) {
          tests::expect_error(Code::io, {format("rank {} (stage {}) stopped: disk full", stage, stage)}, [&] {
            run_list(world, stages, 1, 2, [&](size_t a) {
              if (world.rank() == stage && a == action) world.fail(Code::io, "disk full");
            });
            world.control().barrier();  // some ranks have no more messages
          });
        });
        EXPECT_LT(now_seconds() - begin, 30) << "long before the timeout";
      }
  }
}

// The last stage is then waited for by a rank that is itself waited for.
TEST(StageLinks, WaitForABusyRankAtAnyAction) {
  constexpr double kTimeout = 1;  // see Watchdog.IsPatientWithLinksOfBusyRanks
  for (const int busy : {0, 2})
    comm::run_on_threads(3, {.timeout_s = kTimeout}, [&](comm::World& world) {
      int calls = 0;
      run_list(world, kKinds[0], 1, 1, [&](size_t a) {
        if (world.rank() == busy && a == static_cast<size_t>(calls++))  // in the first list
          std::this_thread::sleep_for(std::chrono::duration<double>(1.25 * kTimeout));
      });
    });
}

// Three ranks with copies cannot share four rows: all are sent.
TEST(Boundary, SplitsCopiesOnlyIfEachRankHasItsRows) {
  const auto boundary = [](sharding::Spread stream, int64_t rows) {
    const sharding::ModelSharding s{.axes = {{"data", 2}, {"a", 2}, {"b", 3}},
                                    .layers = {{.stream = stream, .count = 1}}};
    device::CpuDevice device(1);
    sharding::Spread found;
    comm::run_on_threads(12, {}, [&](comm::World& world) {
      mesh::Mesh mesh(world, device, parallel::mesh_shape(s));
      params::ParamStore store(device, DType::f32, &mesh);
      if (world.first()) found = parallel::Strategy(mesh, store, s).boundary(0, rows);
    });
    return found;
  };
  EXPECT_EQ(boundary({}, 12), (sharding::Spread{.rows = 0b110}));
  EXPECT_EQ(boundary({}, 4), (sharding::Spread{}));
  EXPECT_EQ(boundary({.rows = 0b010}, 12), (sharding::Spread{.rows = 0b110}));
  EXPECT_EQ(boundary({.rows = 0b100}, 12), (sharding::Spread{.rows = 0b100})) << "a is outside b";
  EXPECT_EQ(boundary({.rows = 0b010, .cols = 0b100}, 12), (sharding::Spread{.rows = 0b010, .cols = 0b100}));
}

}  // namespace
}  // namespace trainer::train
