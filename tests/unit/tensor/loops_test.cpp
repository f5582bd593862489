// Loops: parts of a program that are recorded once and replayed any number of times.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tensor/exec.h"

using namespace trainer;

namespace {

/// A rank that records programs on a dry device and replays them on a CPU.
struct Rank {
  device::CpuDevice device{1};
  device::DryDevice dry{1};
  Arena arena{device};
  Meter meter, planned;
  Exec real{device, arena, meter}, plan{dry, arena, planned};
};

void fill(const Tensor& tensor, float value) {
  if (tensor.data != nullptr) std::ranges::fill(tensor.span<float>(), value);
}
void expect_full_of(const Tensor& tensor, float value) {
  if (tensor.data == nullptr) return;
  EXPECT_EQ(std::ranges::count(tensor.span<float>(), value), tensor.count());
}
void count_operator(Exec& ex) { const OpTimer timer(ex.meter, OpKind::elementwise, {1, 1}); }

/// A loop between tensors that are alive before, during and after it. Returns the addresses that its body saw.
std::vector<std::byte*> nested_takes(Exec& ex, int64_t times) {
  std::vector<std::byte*> seen;
  const Scratch before = ex.take("before", {100}, DType::f32);
  fill(before, 1);
  count_operator(ex);
  repeat(ex, times, [&](Exec& inside) {
    count_operator(inside);
    Scratch first = inside.take("first", {50}, DType::f32);
    fill(first, 2);
    const Scratch second = inside.take("second", {200}, DType::f32);
    fill(second, 3);
    seen.push_back(second.tensor().data);
    expect_full_of(first, 2);
    first.reset();
    fill(inside.take("third", {70}, DType::f32), 4);
    expect_full_of(second, 3);
  });
  const Scratch after = ex.take("after", {300}, DType::f32);
  fill(after, 5);
  repeat(ex, 2 * times, [&](Exec& inside) { fill(inside.take("again", {10}, DType::f32), 6); });
  expect_full_of(before, 1);
  expect_full_of(after, 5);
  return seen;
}

TEST(Loops, RunAnyNumberOfTimesInTheSameMemory) {
  Rank rank;
  rank.arena.record("p", [&] { EXPECT_EQ(nested_takes(rank.plan, 0).size(), 1u); });
  rank.arena.seal();
  EXPECT_EQ(rank.planned.of(OpKind::elementwise).calls, 1);
  for (const size_t times : {0, 1, 5, 0}) {
    rank.meter.reset();
    rank.arena.begin("p");
    const std::vector<std::byte*> seen = nested_takes(rank.real, static_cast<int64_t>(times));
    rank.arena.end();
    ASSERT_EQ(seen.size(), times);
    EXPECT_TRUE(std::ranges::all_of(seen, [&](const std::byte* address) { return address == seen.front(); }));
    EXPECT_EQ(rank.meter.of(OpKind::elementwise).calls, 1 + static_cast<int64_t>(times));
  }
}

TEST(Loops, RunInProgramsOfASequence) {
  Rank rank;
  Scratch outlives;
  const auto forward = [&](Exec& ex, int64_t times) {
    nested_takes(ex, times);
    outlives = ex.take("outlives", {40}, DType::f32);
    fill(outlives, 7);
    nested_takes(ex, times);
  };
  const auto backward = [&](Exec& ex, int64_t times) {
    nested_takes(ex, times);
    expect_full_of(outlives, 7);
    outlives.reset();
  };
  rank.arena.record_sequence(
      {{"forward", [&] { forward(rank.plan, 0); }}, {"backward", [&] { backward(rank.plan, 0); }}}, {1, 0, 0});
  rank.arena.seal();
  for (const int64_t times : {0, 1, 5}) {
    rank.arena.begin("forward");
    forward(rank.real, times);
    rank.arena.end();
    rank.arena.begin("backward");
    backward(rank.real, times);
    rank.arena.end();
  }
}

TEST(Loops, RunOnTheHeap) {
  Rank rank;
  Arena heap(rank.device, Arena::Mode::heap);
  Exec ex{rank.device, heap, rank.meter};
  EXPECT_EQ(nested_takes(ex, 3).size(), 3u);
}

TEST(Loops, RejectTensorsThatEscapeOrComeFromOutside) {
  Rank rank;
  std::optional<Scratch> kept;
  const auto escape = [&](Exec& ex, bool escapes) {
    repeat(ex, 1, [&](Exec& inside) {
      Scratch tensor = inside.take("t", {10}, DType::f32);
      if (escapes) kept = std::move(tensor);
    });
    kept.reset();
  };
  EXPECT_THROW(rank.arena.record("escapes", [&] { escape(rank.plan, true); }), Error);
  kept.reset();
  EXPECT_THROW(rank.arena.record("from outside",
                                 [&] {
                                   Scratch outside = rank.plan.take("t", {10}, DType::f32);
                                   repeat(rank.plan, 0, [&](Exec&) { outside.reset(); });
                                 }),
               Error);
  EXPECT_THROW(rank.arena.record("nested",
                                 [&] { repeat(rank.plan, 0, [&](Exec& inside) { repeat(inside, 0, [](Exec&) {}); }); }),
               Error);
  rank.arena.record("p", [&] { escape(rank.plan, false); });
  rank.arena.seal();
  rank.arena.begin("p");
  EXPECT_THROW(escape(rank.real, true), Error);
  kept.reset();
}

}  // namespace
