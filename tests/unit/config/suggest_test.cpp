#include "config/suggest.h"

#include <gtest/gtest.h>

namespace trainer::config {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwapsOnceEach) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("tenser", "tensor"), 1);
  EXPECT_EQ(edit_distance("tesnor", "tensor"), 1);
  EXPECT_EQ(edit_distance("n_heads", "n_head"), 1);
  EXPECT_EQ(edit_distance("steps", "setps"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("LR", "lr"), 0);
}

TEST(Nearest, TakesTheFirstThatBeginsWithTheWordWhereNoneIsNear) {
  const std::vector<std::string> names = {"n_layer", "warmup_steps", "warmup_share", "warms"};
  EXPECT_EQ(nearest("warmup", names), "warms");
  EXPECT_EQ(nearest("warmup_", names), "warmup_steps");
  EXPECT_EQ(nearest("wa", names), std::nullopt);
}

TEST(Nearest, TakesTheNearestWithinAThirdOfTheWord) {
  const std::vector<std::string> names = {"tensor", "data", "strategy"};
  EXPECT_EQ(nearest("tenser", names), "tensor");
  EXPECT_EQ(nearest("startegy", names), "strategy");
  EXPECT_EQ(nearest("date", names), "data");
  EXPECT_EQ(nearest("pipeline", names), std::nullopt);
  EXPECT_EQ(nearest("x", {"lr"}), std::nullopt);
  EXPECT_EQ(nearest("", names), std::nullopt);
  EXPECT_EQ(did_you_mean("tenser", names), "; did you mean \"tensor\"?");
  EXPECT_EQ(did_you_mean("pipeline", names), "");
}

}  // namespace
}  // namespace trainer::config
