#include "tensor/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace trainer {
namespace {

struct Block {
  int64_t first, last, address, bytes;
};

/// Directly from the definition: goes through the blocks that overlap in time, in order of address.
int64_t lowest_gap_by_definition(std::vector<Block> blocks, int64_t first, int64_t last, int64_t bytes) {
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.address < b.address; });
  int64_t address = 0;
  for (const Block& block : blocks) {
    if (block.last <= first || last <= block.first || block.bytes == 0) continue;
    if (block.address - address >= bytes) break;
    address = std::max(address, block.address + block.bytes);
  }
  return address;
}

TEST(Occupancy, FindsTheLowestGapAsItIsDefined) {
  std::mt19937 random(7);
  for (const int64_t moments : {1, 2, 7, 64, 300}) {
    Occupancy occupied(moments);
    std::vector<Block> blocks;
    for (int i = 0; i < 400; ++i) {
      const int64_t first = random() % moments;
      const int64_t length = random() % 3 == 0 ? moments : 1 + random() % 5;
      const int64_t last = std::min(moments, first + length), bytes = 64 * (random() % 9);
      const int64_t address = occupied.lowest_gap(first, last, bytes);
      ASSERT_EQ(address, lowest_gap_by_definition(blocks, first, last, bytes)) << moments << " moments, block " << i;
      occupied.occupy(first, last, address, bytes);
      blocks.push_back({first, last, address, bytes});
    }
  }
}

TEST(Occupancy, PutsNothingAnywhere) {
  Occupancy occupied(0);
  EXPECT_EQ(occupied.lowest_gap(0, 0, 64), 0);
}

}  // namespace
}  // namespace trainer
