#include "parallel/row_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "parallel/strategy.h"

namespace trainer::parallel {
namespace {

/// Returns a sharding on these axes: `rows` split attention's rows, and `context` of them share sequences.
sharding::ModelSharding sharding_of(std::vector<sharding::Axis> axes, AxisSet rows, AxisSet context) {
  sharding::ModelSharding sharding;
  sharding.axes = std::move(axes);
  sharding.layers.front().attention.rows = rows;
  sharding.layers.front().context.axes = context;
  return sharding;
}

/// Returns a sharding of `groups` groups of c ranks each; the ranks of a group share sequences.
sharding::ModelSharding groups_of(int64_t groups, int64_t c) {
  return sharding_of({{"data", 1}, {"batch", groups}, {"context", c}}, 0b110, 0b100);
}

TEST(RowOrder, GivesEachRankAnEarlyAndALateSegmentOfEverySequence) {
  using Rows = std::vector<int32_t>;
  EXPECT_EQ(RowOrder(groups_of(1, 2), 1, 8).rows(), (Rows{0, 1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(RowOrder(groups_of(1, 2), 2, 8).rows(), (Rows{0, 1, 8, 9, 6, 7, 14, 15, 2, 3, 10, 11, 4, 5, 12, 13}));
  EXPECT_EQ(RowOrder(groups_of(2, 3), 2, 12).rows(),
            (Rows{0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7, 12, 13, 22, 23, 14, 15, 20, 21, 16, 17, 18, 19}));
  EXPECT_EQ(RowOrder(groups_of(2, 3), 2, 12).positions(), (Rows{0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7,  //
                                                                0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7}));
}

TEST(RowOrder, IsNaturalUnlessSeveralRanksShareSequences) {
  for (const sharding::ModelSharding& sharding :
       {sharding::ModelSharding(), groups_of(4, 1), sharding_of({{"data", 1}, {"batch", 4}}, 0b10, 0)}) {
    const RowOrder order(sharding, 4, 7);
    EXPECT_TRUE(order.rows().empty());
    EXPECT_TRUE(order.positions().empty());
    EXPECT_EQ(RowOrder::segments(sharding), 1);
    const std::vector<int32_t> ids(28, 5);
    std::vector<int32_t> memory;
    EXPECT_EQ(&order.stored(ids, memory), &ids);
  }
}

TEST(RowOrder, StoredValuesAreThoseOfTheirRows) {
  const RowOrder order(groups_of(1, 2), 2, 8);
  std::vector<float> weights(16), memory;
  std::iota(weights.begin(), weights.end(), 0.5f);
  const std::vector<float>& stored = order.stored(weights, memory);
  ASSERT_EQ(stored.size(), order.rows().size());
  for (size_t r = 0; r < stored.size(); ++r) EXPECT_EQ(stored[r], static_cast<float>(order.rows()[r]) + 0.5f);
  EXPECT_EQ(order.stored(weights, memory).size(), 16u) << "the memory is used again";
}

// The target of these rows is not the id of the next stored row, so a shift of stored ids would be wrong there.
TEST(RowOrder, InterruptsSequencesAtBordersOfSegments) {
  const auto interrupted = [](int64_t c, int64_t sequences) {
    const RowOrder order(groups_of(1, c), sequences, 48);
    std::vector<int32_t> ids(static_cast<size_t>(sequences * 48)), targets(ids.size()), memory[2];
    std::iota(ids.begin(), ids.end(), 0);
    std::iota(targets.begin(), targets.end(), 1);
    const std::vector<int32_t>&stored_ids = order.stored(ids, memory[0]), &stored = order.stored(targets, memory[1]);
    int64_t count = 1;  // the last row
    for (size_t r = 0; r + 1 < stored.size(); ++r) count += stored[r] != stored_ids[r + 1];
    return count;
  };
  EXPECT_EQ(interrupted(2, 2), 8);
  EXPECT_EQ(interrupted(3, 2), 12);
  EXPECT_EQ(interrupted(4, 1), 7);
}

// The rows of each rank follow from its coordinates in the mesh, in whichever order the axes are.
TEST(RowOrder, RowsOfARankAreContiguousInAnyMesh) {
  std::mt19937 draw(7);
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(draw() % n); };
  int shared = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<sharding::Axis> axes = {{"data", 1 + below(2)}};
    AxisSet rows = 0, context = 0;
    for (int64_t a = 1; a <= 1 + below(4); ++a) {
      axes.push_back({format("axis{}", a), 1 + below(4)});
      const int64_t use = below(3);  // columns, rows, or rows of shared sequences
      if (use > 0) rows |= AxisSet{1} << a;
      if (use == 2) context |= AxisSet{1} << a;
    }
    const sharding::ModelSharding sharding = sharding_of(axes, rows, context);
    const int64_t c = sharding.ranks(context), groups = sharding.ranks(rows & ~context);
    const int64_t each = 1 + below(3), length = 1 + below(3), seq_len = 2 * c * length;
    const int64_t sequences = groups * each, of_rank = each * 2 * length;
    const RowOrder order(sharding, sequences, seq_len);
    if (c == 1) {
      EXPECT_TRUE(order.rows().empty());
      continue;
    }
    ++shared;
    EXPECT_EQ(RowOrder::segments(sharding), 2 * c);
    std::vector<int32_t> sorted = order.rows();
    std::ranges::sort(sorted);
    ASSERT_EQ(std::ssize(sorted), sequences * seq_len);
    for (size_t r = 0; r < sorted.size(); ++r) ASSERT_EQ(sorted[r], static_cast<int32_t>(r)) << "a permutation";
    const mesh::MeshShape mesh = mesh_shape(sharding);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const int64_t group = mesh.index(rank, rows & ~context), k = mesh.index(rank, context);
      std::vector<int32_t> expected;
      for (const bool late : {false, true})
        for (int64_t i = 0; i < each; ++i)
          for (int64_t p = 0; p < seq_len; ++p)
            if (p / length == (late ? 2 * c - 1 - k : k))
              expected.push_back(static_cast<int32_t>((group * each + i) * seq_len + p));
      const auto first = order.rows().begin() + mesh.index(rank, rows) * of_rank;
      ASSERT_EQ(std::vector<int32_t>(first, first + of_rank), expected) << "rank " << rank;
      int64_t pairs = 0;  // pairs of a query and a key that is not later
      for (const int32_t row : expected) pairs += row % seq_len + 1;
      ASSERT_EQ(pairs * c, each * seq_len * (seq_len + 1) / 2) << "equal work";
    }
  }
  EXPECT_GT(shared, 100);
}

TEST(RowOrder, RefusesSequencesThatCannotBeSplit) {
  EXPECT_THROW(RowOrder(groups_of(1, 2), 1, 10), std::exception);
  EXPECT_THROW(RowOrder(groups_of(2, 2), 3, 8), std::exception);
}

}  // namespace
}  // namespace trainer::parallel
