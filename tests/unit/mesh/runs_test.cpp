#include "mesh/runs.h"

#include <gtest/gtest.h>

using trainer::mesh::matrix_runs;
using Stretch = trainer::mesh::Run;  // ::testing::Test has a Run of its own

TEST(Runs, PackedMatrixIsOneRun) { EXPECT_EQ(matrix_runs(3, 4, 10, 4), (std::vector<Stretch>{{0, 10, 12}})); }

TEST(Runs, ColumnsOfAWiderBlockAreOneRunARow) {
  EXPECT_EQ(matrix_runs(3, 4, 2, 9), (std::vector<Stretch>{{0, 2, 4}, {4, 11, 4}, {8, 20, 4}}));
}

TEST(Runs, NothingHasNoRuns) {
  EXPECT_TRUE(matrix_runs(0, 4, 0, 4).empty());
  EXPECT_TRUE(matrix_runs(4, 0, 0, 4).empty());
}

using trainer::mesh::clip_runs;

TEST(Runs, ClippingKeepsAPieceOfTheMemoryAndMovesTheOrigin) {
  const std::vector<Stretch> runs = {{0, 2, 2}, {4, 8, 2}, {20, 14, 2}};
  EXPECT_EQ(clip_runs(runs, 0, 9), (std::vector<Stretch>{{0, 2, 2}, {4, 8, 1}}));
  EXPECT_EQ(clip_runs(runs, 9, 9), (std::vector<Stretch>{{5, 0, 1}, {20, 5, 2}}));
  EXPECT_TRUE(clip_runs(runs, 4, 4).empty());
  EXPECT_TRUE(clip_runs(runs, 16, 100).empty());
}

TEST(Runs, ClippingStridedRunsCountsTheirSteps) {
  const std::vector<Stretch> runs = {{0, 0, 5, 3}, {5, 1, 5, 3}};  // at 0 3 6 9 12 and 1 4 7 10 13
  EXPECT_EQ(clip_runs(runs, 4, 5), (std::vector<Stretch>{{2, 2, 1, 3}, {6, 0, 2, 3}}));
}
