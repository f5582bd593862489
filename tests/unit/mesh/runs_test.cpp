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
