#include "run/divergence.h"

#include <gtest/gtest.h>

#include <limits>

#include "rigs/files.h"

namespace trainer::run {
namespace {

constexpr double kUnknownLoss = std::numeric_limits<double>::quiet_NaN();

checkpoint::TrainState saved_at(double loss) {
  checkpoint::TrainState state;
  state.loss = loss;
  return state;
}

TEST(Proof, IsALossNearTheOneBefore) {
  EXPECT_TRUE(proves(3.9, saved_at(4), 50257));
  EXPECT_TRUE(proves(4.9, saved_at(4), 50257));
  EXPECT_TRUE(proves(0.1, saved_at(4), 50257));
  EXPECT_TRUE(proves(3.9, saved_at(kUnknownLoss), 50257)) << "saved by a version that kept no loss";
  EXPECT_FALSE(proves(5.1, saved_at(4), 50257));
  EXPECT_FALSE(proves(kUnknownLoss, saved_at(4), 50257));
  EXPECT_FALSE(proves(std::numeric_limits<double>::infinity(), saved_at(4), 50257));
}

TEST(Proof, IsNotALossFarAboveAUniformGuess) {
  EXPECT_TRUE(proves(11.8, saved_at(11.8), 50257)) << "ln 50257 = 10.82";
  EXPECT_FALSE(proves(11.9, saved_at(11.9), 50257)) << "near the one before, as all losses of exploded weights";
  EXPECT_FALSE(proves(500, saved_at(kUnknownLoss), 50257));
}

TEST(Proof, IsNotForACheckpointOfSkippedStepsOrOfWeightsThatAreNotFinite) {
  checkpoint::TrainState state = saved_at(4);
  state.skipped_in_row = 1;
  EXPECT_FALSE(proves(4, state, 50257));
  state = saved_at(4);
  state.finite_weights = false;
  EXPECT_FALSE(proves(4, state, 50257));
}

TEST(Proof, IsAdvisedWhileItIsThere) {
  tests::TempFolder folder;
  const std::filesystem::path step = folder / "step-00000007";
  EXPECT_EQ(suggest_resume(step, folder).find(step.string()), std::string::npos);
  EXPECT_NE(suggest_resume({}, folder).find("--resume never"), std::string::npos);
  std::filesystem::create_directory(step);
  tests::write(step / "COMPLETE", "");
  EXPECT_TRUE(suggest_resume(step, folder).ends_with("--resume " + step.string()));
  EXPECT_NE(suggest_resume(step, folder / "branch").find("different run.dir"), std::string::npos)
      << "the branch's own checkpoints would be resumed";
}

}  // namespace
}  // namespace trainer::run
