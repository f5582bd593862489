#include "sharding/pipeline.h"

#include <gtest/gtest.h>

namespace trainer::sharding {
namespace {

TEST(Lists, OfOneStageRunBothPassesOfEachMicroBatchTogether) {
  for (const int64_t micro_batches : {0, 1, 2, 5}) {
    const ActionLists lists = lists_of(micro_batches);
    ASSERT_EQ(lists.size(), 1u);
    ASSERT_EQ(lists[0].size(), static_cast<size_t>(micro_batches));
    for (int32_t micro = 0; micro < micro_batches; ++micro)
      EXPECT_EQ(lists[0][static_cast<size_t>(micro)], (Action{kForward | kBackward, micro, 0}));
  }
}

TEST(Kinds, AreInTheOrderInWhichTheyBeginAndCountTheirActions) {
  const auto of = [](int64_t micro_batches) {
    std::vector<std::array<int64_t, 3>> all;  // first, last, count
    for (const auto& [kind, count] : kinds_of(lists_of(micro_batches)[0], micro_batches))
      all.push_back({kind.first, kind.last, count});
    return all;
  };
  using All = std::vector<std::array<int64_t, 3>>;
  EXPECT_EQ(of(1), (All{{1, 1, 1}}));
  EXPECT_EQ(of(2), (All{{1, 0, 1}, {0, 1, 1}}));
  EXPECT_EQ(of(5), (All{{1, 0, 1}, {0, 0, 3}, {0, 1, 1}}));
  const std::vector<Action> two_chunks = {
      {kForward, 0, 0}, {kForward, 1, 0}, {kForward | kBackward, 0, 1}, {kBackward, 0, 0}, {kForward | kBackward, 1, 1},
      {kBackward, 1, 0}};
  const std::vector<Repeated> kinds = kinds_of(two_chunks, 2);
  EXPECT_EQ(kinds.size(), two_chunks.size()) << "each differs in its passes, its chunk, or in being the first or last";
  EXPECT_EQ(kinds[2].kind, (ActionKind{kForward | kBackward, 1, true, false}));
}

}  // namespace
}  // namespace trainer::sharding
