// Frames: tensors that outlive a program of a sequence, in any order of micro-batches in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tensor/arena.h"

using namespace trainer;

namespace {

/// A take of `elements` floats, or if 0 the release of the tensor `which`, counted from the oldest.
struct Op {
  int64_t elements = 0;
  size_t which = 0;
};
using Passes = std::vector<std::vector<Op>>;  // by program of the sequence

Passes random_passes(std::mt19937& rng, size_t members) {
  Passes passes(members);
  size_t alive = 0;
  for (std::vector<Op>& ops : passes) {
    for (int i = 0; i < 25; ++i) {
      const bool takes = alive == 0 || rng() % 5 < 3;
      ops.push_back(takes ? Op{static_cast<int64_t>(1 + rng() % 200)} : Op{0, rng() % alive});
      alive += takes ? 1 : -1;
    }
    while (&ops == &passes.back() && alive > 0) ops.push_back({0, --alive});
  }
  return passes;
}

/// A micro-batch on its way through a sequence. Its tensors are full of values of their own.
struct Flight {
  void run(Arena& arena, const std::vector<Op>& ops) {
    for (const Op& op : ops) {
      if (op.elements == 0) {
        tensors.erase(tensors.begin() + static_cast<long>(op.which));
        continue;
      }
      tensors.emplace_back(arena.take("t", {op.elements}, DType::f32), next += 1);
      const Tensor& taken = tensors.back().first;
      if (taken.data != nullptr) std::ranges::fill(taken.span<float>(), next);
    }
  }
  bool is_intact() const {
    return std::ranges::all_of(tensors, [](const auto& each) {
      const auto values = each.first.tensor().template span<float>();
      return std::ranges::count(values, each.second) == std::ssize(values);
    });
  }
  size_t sequence = 0, done = 0;
  float next = 0;
  Arena::PerPool slots = {};
  std::vector<std::pair<Scratch, float>> tensors = {};
};

constexpr std::pair<size_t, size_t> kEnds[] = {{0, 1}, {0, 2}, {1, 2}};

TEST(Frames, KeepTensorsOfMicroBatchesInFlight) {
  device::CpuDevice device(1);
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 rng(seed);
    Arena arena(device);
    std::vector<Passes> sequences;
    const size_t members = 1 + seed % 3;
    const Arena::PerPool counts = {static_cast<int64_t>(1 + rng() % 3), static_cast<int64_t>(1 + rng() % 3),
                                   static_cast<int64_t>(1 + rng() % 3)};
    const auto key = [](size_t sequence, size_t member) { return format("{} of {}", member, sequence); };
    for (size_t s = 0; s < 2; ++s) {  // two chunks share the pools
      sequences.push_back(random_passes(rng, members));
      Flight dry;
      std::vector<Arena::Member> programs;
      for (size_t m = 0; m < members; ++m) programs.push_back({key(s, m), [&, m] { dry.run(arena, sequences[s][m]); }});
      arena.record_sequence(programs, counts);
    }
    int64_t frames = 0, workspace = 0;
    for (size_t p = 0; p < 3; ++p) {
      int64_t largest = 0;
      for (const auto& [name, program] : arena.programs()) largest = std::max(largest, program.frame[p]);
      frames += counts[p] * largest;
    }
    for (const auto& [name, program] : arena.programs()) {
      workspace = std::max(workspace, program.peak);
      EXPECT_GE(program.peak, program.live_bound);
      int64_t alive = 0;
      for (const auto& [tag, bytes] : arena.peak_by_tag(name)) alive += bytes;
      EXPECT_EQ(alive, frames + program.live_bound);
    }
    EXPECT_EQ(arena.largest_program(), frames + workspace);
    Flight outside;
    const std::vector<Op> once = {{300}, {0, 0}};
    arena.record("outside", [&] { outside.run(arena, once); });
    arena.seal();

    std::vector<Flight> flying;
    std::array<std::vector<bool>, 3> used;
    for (size_t p = 0; p < 3; ++p) used[p].resize(static_cast<size_t>(counts[p]));
    const auto has_room = [&](size_t member) {
      for (size_t p = 0; p < 3; ++p)
        if (kEnds[p].first == member && std::ranges::count(used[p], false) == 0) return false;
      return true;
    };
    float first_value = 0;
    for (int step = 0, started = 0; started < 40 || !flying.empty(); ++step) {
      ASSERT_LT(step, 10'000);
      const size_t at = rng() % (flying.size() + 1);
      if (at == flying.size()) {
        if (started == 40 || !has_room(0)) continue;
        flying.push_back({.sequence = static_cast<size_t>(started++ % 2), .next = first_value += 1000});
      }
      Flight& flight = flying[at];
      if (!has_room(flight.done)) continue;
      for (size_t p = 0; p < 3; ++p)
        if (kEnds[p].first == flight.done) {
          const auto free = std::ranges::find(used[p], false);
          *free = true;
          flight.slots[p] = free - used[p].begin();
        }
      arena.begin(key(flight.sequence, flight.done), flight.slots);
      flight.run(arena, sequences[flight.sequence][flight.done]);
      for (const Flight& each : flying) ASSERT_TRUE(each.is_intact()) << "seed " << seed << ", step " << step;
      arena.end();
      for (size_t p = 0; p < 3; ++p)
        if (kEnds[p].second == flight.done || (members <= kEnds[p].second && flight.done + 1 == members))
          used[p][static_cast<size_t>(flight.slots[p])] = false;
      if (++flight.done == members) flying.erase(flying.begin() + static_cast<long>(at));
    }
    arena.begin("outside");
    outside.run(arena, once);
    arena.end();
  }
}

/// A sequence of two programs: "saved" is taken in the first and released in the second.
class Pair : public testing::Test {
 protected:
  Pair() {
    arena_.record_sequence({{"forward", [&] { forward(0); }}, {"backward", [&] { backward(0); }}}, {2, 0, 0});
    arena_.record("outside", [&] { Scratch a = arena_.take("a", {900}, DType::f32); });
    arena_.seal();
  }
  void forward(size_t micro) {
    const Scratch passing = arena_.take("passing", {500}, DType::f32);
    saved_[micro] = arena_.take("saved", {100}, DType::f32);
  }
  void backward(size_t micro) {
    const Scratch passing = arena_.take("passing", {300}, DType::f32);
    saved_[micro].reset();
  }
  device::CpuDevice device_{1};
  Arena arena_{device_};
  std::array<Scratch, 3> saved_;
};

TEST_F(Pair, TakesFramesAndTheLargerWorkspace) {
  EXPECT_EQ(arena_.programs().at("forward").peak, 2048);
  EXPECT_EQ(arena_.programs().at("backward").peak, 1216);
  EXPECT_EQ(arena_.programs().at("outside").peak, 3648) << "over the frames, too";
  EXPECT_EQ(arena_.capacity(), 3648);
  EXPECT_EQ(arena_.programs().at("forward").frame, (Arena::PerPool{448, 0, 0}));
  std::vector<const std::byte*> addresses;
  for (int pass = 0; pass < 2; ++pass)
    for (const int64_t slot : {0, 1}) {
      arena_.begin("forward", {slot, 0, 0});
      forward(0);
      arena_.end();
      addresses.push_back(saved_[0].tensor().data);
      arena_.begin("backward", {slot, 0, 0});
      backward(0);
      arena_.end();
    }
  EXPECT_EQ(addresses[1] - addresses[0], 448);
  EXPECT_EQ(addresses[2], addresses[0]);
  EXPECT_EQ(addresses[3], addresses[1]);
}

TEST_F(Pair, RefusesWrongFrames) {
  EXPECT_THROW(arena_.begin("backward", {0, 0, 0}), Error) << "not in use";
  EXPECT_THROW(arena_.begin("forward", {2, 0, 0}), Error) << "there are two";
  EXPECT_THROW(arena_.begin("forward", {-1, 0, 0}), Error);
  for (const int64_t slot : {0, 1}) {
    arena_.begin("forward", {slot, 0, 0});
    forward(static_cast<size_t>(slot));
    arena_.end();
    EXPECT_THROW(arena_.begin("forward", {slot, 0, 0}), Error) << "in use";
    EXPECT_THROW(arena_.begin("outside"), Error) << "overwrites the frame";
  }
  arena_.begin("backward", {0, 0, 0});
  backward(1);
  EXPECT_THROW(arena_.end(), Error) << "another micro-batch's tensor";
}

TEST_F(Pair, RequiresTheRecordedReleases) {
  arena_.begin("forward", {0, 0, 0});
  forward(0);
  arena_.end();
  arena_.begin("backward", {0, 0, 0});
  { const Scratch passing = arena_.take("passing", {300}, DType::f32); }
  EXPECT_THROW(arena_.end(), Error);
}

TEST_F(Pair, ReleasesEverythingAndKeepsNothing) {
  const auto record = [&](const char* key, auto second) {
    Arena arena(device_);
    Scratch open;
    arena.record_sequence(
        {{"first", [&] { open = arena.take("a", {1}, DType::f32); }}, {key, [&] { second(arena, open); }}}, {1, 0, 0});
  };
  record("fits", [](Arena&, Scratch& open) { open.reset(); });
  EXPECT_THROW(record("open", [](Arena&, Scratch&) {}), Error);
  EXPECT_THROW(record("keeps", [](Arena& arena, Scratch& open) { open.reset(), arena.keep("b", {1}, DType::f32); }),
               Error);
  Arena arena(device_);
  Scratch open;
  EXPECT_THROW(arena.record_sequence(
                   {{"first", [&] { open = arena.take("a", {1}, DType::f32); }}, {"second", [&] { open.reset(); }}}),
               Error)
      << "no frames";
}

TEST(Sequence, OfOneProgramIsPackedLikeAProgram) {
  device::DryDevice device(1);
  for (unsigned seed = 1; seed <= 10; ++seed) {
    std::mt19937 rng(seed);
    const Passes passes = random_passes(rng, 1);
    const auto body = [&](Arena& arena) {
      arena.keep("kept", {50}, DType::f32);
      Flight().run(arena, passes[0]);
    };
    Arena alone(device), sequence(device);
    alone.record("p", [&] { body(alone); });
    alone.record(
        "next", [&] { body(alone); }, "p");
    sequence.record_sequence({{"p", [&] { body(sequence); }}});
    sequence.record(
        "next", [&] { body(sequence); }, "p");
    for (const char* key : {"p", "next"}) {
      const Arena::Program &a = alone.programs().at(key), &b = sequence.programs().at(key);
      ASSERT_EQ(a.intervals.size(), b.intervals.size());
      for (size_t i = 0; i < a.intervals.size(); ++i) {
        EXPECT_EQ(a.intervals[i].offset, b.intervals[i].offset);
        EXPECT_EQ(a.intervals[i].last, b.intervals[i].last);
      }
      EXPECT_EQ(a.peak, b.peak);
      EXPECT_EQ(a.live_bound, b.live_bound);
    }
    EXPECT_EQ(alone.largest_program(), sequence.largest_program());
  }
}

}  // namespace
