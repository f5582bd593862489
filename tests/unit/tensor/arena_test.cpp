#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

using namespace trainer;

namespace {

// A random program of nested and overlapping takes; the same sequence for the same seed.
void random_program(Arena& arena, unsigned seed, int takes) {
  std::mt19937 rng(seed);
  std::vector<Scratch> alive;
  for (int i = 0; i < takes; ++i) {
    if (!alive.empty() && rng() % 3 == 0) alive.erase(alive.begin() + static_cast<long>(rng() % alive.size()));
    alive.push_back(arena.take("t" + std::to_string(i % 5), {static_cast<int64_t>(1 + rng() % 5000)}, DType::f32));
  }
}

TEST(Arena, PackedIntervalsThatOverlapInTimeAreDisjointInMemory) {
  device::DryDevice device(2);
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Arena arena(device);
    arena.record("p", [&] { random_program(arena, seed, 120); });
    const auto& program = arena.programs().at("p");
    ASSERT_EQ(program.intervals.size(), 120u);
    for (size_t i = 0; i < 120; ++i) {
      const auto& a = program.intervals[i];
      EXPECT_EQ(a.offset % 64, 0);
      EXPECT_LE(a.offset + a.bytes, program.peak);
      for (size_t j = 0; j < i; ++j) {
        const auto& b = program.intervals[j];
        const bool in_time = a.first < b.last && b.first < a.last;
        const bool in_memory = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
        EXPECT_FALSE(in_time && in_memory) << "seed " << seed << ": " << i << " and " << j;
      }
    }
    EXPECT_GE(program.peak, program.live_bound);
    EXPECT_LE(static_cast<double>(program.peak), 1.2 * static_cast<double>(program.live_bound)) << "seed " << seed;
  }
}

// Kept memory is overwritten neither by later takes of its program nor by those of the next program.
TEST(Arena, KeptMemoryOutlastsItsProgram) {
  device::CpuDevice device(1);
  Arena arena(device);
  const Shape small{1000}, large{3000};
  const auto first = [&] {
    Scratch before = arena.take("before", large, DType::f32);
    Tensor kept[2] = {arena.keep("kept", small, DType::f32), {}};
    before.reset();
    kept[1] = arena.keep("kept", large, DType::f32);
    const Scratch after = arena.take("after", small, DType::f32);
    if (after.tensor().data == nullptr) return std::vector<Tensor>();  // recording
    for (const Tensor& each : kept) std::ranges::fill(each.span<float>(), 1.0F);
    std::ranges::fill(after.tensor().span<float>(), 2.0F);
    return std::vector<Tensor>{kept[0], kept[1]};
  };
  const auto second = [&] {
    const Scratch other = arena.take("other", large, DType::f32);
    if (other.tensor().data != nullptr) std::ranges::fill(other.tensor().span<float>(), 3.0F);
  };
  arena.record("first", first);
  arena.record("second", second, "first");
  arena.record("apart", second);
  arena.seal();
  EXPECT_EQ(arena.programs().at("first").live_bound, 20096);  // 4 bytes × 5000, in units of 64 bytes
  EXPECT_EQ(arena.programs().at("second").live_bound, 28096);
  EXPECT_EQ(arena.peak_by_tag("second"), (std::map<std::string, int64_t>{{"kept", 16064}, {"other", 12032}}));
  EXPECT_EQ(arena.programs().at("apart").peak, 12032);
  EXPECT_EQ(arena.peak_by_tag("first").at("kept"), 16064);
  std::vector<float*> addresses;
  for (int pass = 0; pass < 2; ++pass) {
    arena.begin("first");
    const std::vector<Tensor> kept = first();
    arena.end();
    arena.begin("second");
    second();
    arena.end();
    for (const Tensor& each : kept) {
      EXPECT_EQ(std::ranges::count(each.span<float>(), 1.0F), each.count());
      addresses.push_back(each.as<float>());
    }
  }
  EXPECT_EQ(addresses[0], addresses[2]);
  EXPECT_EQ(addresses[1], addresses[3]);
}

TEST(Arena, ReplayRepeatsAddresses) {
  device::CpuDevice device(1);
  Arena arena(device);
  arena.record("p", [&] { random_program(arena, 7, 30); });
  arena.seal();
  std::vector<std::byte*> first;
  for (int pass = 0; pass < 2; ++pass) {
    arena.begin("p");
    std::mt19937 rng(7);
    std::vector<Scratch> alive;
    std::vector<std::byte*> seen;
    for (int i = 0; i < 30; ++i) {
      if (!alive.empty() && rng() % 3 == 0) alive.erase(alive.begin() + static_cast<long>(rng() % alive.size()));
      alive.push_back(arena.take("t" + std::to_string(i % 5), {static_cast<int64_t>(1 + rng() % 5000)}, DType::f32));
      seen.push_back(alive.back().tensor().data);
    }
    alive.clear();
    arena.end();
    if (pass == 0) first = seen;
    EXPECT_EQ(seen, first);
  }
}

TEST(Arena, NamesWhatDiffersFromTheRecord) {
  device::CpuDevice device(1);
  Arena arena(device);
  arena.record("p", [&] { Scratch a = arena.take("a", {10}, DType::f32); });
  arena.seal();
  arena.begin("p");
  try {
    Scratch b = arena.take("b", {10}, DType::f32);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"b\""), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("\"a\""), std::string::npos) << e.what();
  }
  EXPECT_THROW(arena.end(), Error);
}

TEST(Arena, RejectsTakesOutsidePrograms) {
  device::CpuDevice device(1);
  Arena arena(device);
  EXPECT_THROW(arena.take("a", {1}, DType::f32), Error);
  EXPECT_THROW(arena.begin("unknown"), Error);
}

}  // namespace
