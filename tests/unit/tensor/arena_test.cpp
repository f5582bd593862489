#include "tensor/arena.h"

#include <gtest/gtest.h>

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
