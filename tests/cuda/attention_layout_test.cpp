// Counts bank conflicts of the attention kernels. Shared memory has 32 banks of 4 bytes; an access by a warp takes as
// many turns as there are distinct words in the busiest bank.
#include "ops/cuda/attention_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace trainer::ops::cuda {
namespace {

/// Returns the turns that an access takes; `offsets` are those of the lanes served together, `bytes` for each lane.
int turns(const std::vector<int>& offsets, int bytes) {
  std::set<int> words[32];
  for (const int offset : offsets)
    for (int word = offset / 4; word < (offset + bytes) / 4; ++word) words[word % 32].insert(word);
  size_t most = 0;
  for (const auto& bank : words) most = std::max(most, bank.size());
  return static_cast<int>(most);
}

template <typename Columns>
struct AttentionLayout : ::testing::Test {
  static constexpr int kCols = Columns::value;
};
using Widths =
    ::testing::Types<std::integral_constant<int, 32>, std::integral_constant<int, 64>, std::integral_constant<int, 96>,
                     std::integral_constant<int, 128>, std::integral_constant<int, 256>>;
TYPED_TEST_SUITE(AttentionLayout, Widths);

TYPED_TEST(AttentionLayout, GivesEachChunkAPlaceOfItsOwn) {
  using Layout = TileLayout<TestFixture::kCols>;
  std::set<int> places;
  for (int row = 0; row < 64; ++row) {
    for (int chunk = 0; chunk < Layout::kRowChunks; ++chunk) {
      const int place = Layout::offset(row, chunk);
      EXPECT_EQ(place % kChunk, 0);
      EXPECT_EQ(place / TestFixture::kCols, row);
      EXPECT_TRUE(places.insert(place).second) << "row " << row << " chunk " << chunk;
    }
  }
}

TYPED_TEST(AttentionLayout, LanesNameTheBlocksTheyMean) {
  using Layout = TileLayout<TestFixture::kCols>;
  for (int lane = 0; lane < 32; ++lane) {
    const LanePlace place = block_place(lane);
    EXPECT_EQ(place.row, lane % 16);
    EXPECT_EQ(place.chunk, lane / 16);
    const BlockOffsets<TestFixture::kCols> offsets(32, place);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < TestFixture::kCols / 16; ++j)
        ASSERT_EQ(offsets.at(i, j), Layout::offset(32 + 16 * i + place.row, 2 * j + place.chunk))
            << "lane " << lane << " block " << i << ", " << j;
  }
}

TYPED_TEST(AttentionLayout, MatrixLoadsMeetNoBankTwice) {
  for (int first_row = 0; first_row < 32; first_row += 16) {
    for (int j = 0; j < TestFixture::kCols / 16; ++j) {
      for (int matrix = 0; matrix < 4; ++matrix) {  // eight rows of 16 bytes at a time
        std::vector<int> offsets;
        for (int lane = 8 * matrix; lane < 8 * matrix + 8; ++lane)
          offsets.push_back(2 * BlockOffsets<TestFixture::kCols>(first_row, block_place(lane)).at(0, j));
        ASSERT_EQ(turns(offsets, 16), 1) << "rows from " << first_row << ", block " << j << ", matrix " << matrix;
      }
    }
  }
}

TYPED_TEST(AttentionLayout, CopiesIntoATileMeetNoBankTwice) {
  using Layout = TileLayout<TestFixture::kCols>;
  for (int first = 0; first < 64 * Layout::kRowChunks; first += 8) {  // eight lanes write 128 bytes at a time
    std::vector<int> offsets;
    for (int i = first; i < first + 8; ++i)
      offsets.push_back(2 * Layout::offset(i / Layout::kRowChunks, i % Layout::kRowChunks));
    ASSERT_EQ(turns(offsets, 16), 1) << "chunks from " << first;
  }
}

TYPED_TEST(AttentionLayout, ResultsEnterATileWithoutMeetingABankTwice) {
  using Layout = TileLayout<TestFixture::kCols>;
  for (int first_row = 0; first_row < 64; first_row += 8) {
    for (int chunk = 0; chunk < Layout::kRowChunks; ++chunk) {
      std::vector<int> offsets;
      for (int lane = 0; lane < 32; ++lane)
        offsets.push_back(2 * (Layout::offset(first_row + lane / 4, chunk) + lane % 4 * 2));
      ASSERT_EQ(turns(offsets, 4), 1) << "rows from " << first_row << ", chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace trainer::ops::cuda
