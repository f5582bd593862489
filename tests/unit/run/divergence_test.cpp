#include "run/divergence.h"

#include <gtest/gtest.h>

#include <limits>

#include "unit/checkpoint/fixture.h"

namespace trainer::run {
namespace {

namespace fs = std::filesystem;

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
  EXPECT_TRUE(proves(3.9, saved_at(kUnknownLoss), 50257)) << "the loss of the step before is unknown";
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

/// Saves the step, and returns the sequence number of the checkpoint.
int64_t save(const fs::path& checkpoints, int64_t step, int64_t proven_step, int64_t origin = 0) {
  checkpoint::Tensors tensors(checkpoint::small_model());
  tensors.fill(1);
  checkpoint::Snapshot snapshot = checkpoint::snapshot_of(tensors, step);
  snapshot.state.proven_step = proven_step;
  snapshot.state.origin = origin;
  checkpoint::CheckpointStore store(checkpoints, {}, checkpoint::fast_calls());
  return checkpoint::Reader(store.save(snapshot)).manifest().sequence;
}

TEST(Advice, IsTheProvenCheckpoint) {
  tests::TempFolder run;
  const fs::path own = run / "own", base = run / "base";
  EXPECT_NE(suggest_resume({}, own).find("--resume never"), std::string::npos);
  const int64_t seventh = save(own, 7, -1), of_base = save(base, 4, -1);
  EXPECT_TRUE(suggest_resume(own / "step-00000007", own).ends_with("--resume " + (own / "step-00000007").string()));
  save(own, 9, 7);
  EXPECT_TRUE(suggest_resume(own / "step-00000007", own).ends_with("--resume " + (own / "step-00000007").string()));
  // In the same run.dir, the run's own checkpoints would be resumed instead.
  tests::expect_parts(suggest_resume(base / "step-00000004", own),
                      {"--resume " + (base / "step-00000004").string(), "different run.dir"});
  for (const int64_t origin : {seventh, of_base}) {
    save(own, 11, 7, origin);
    EXPECT_EQ(suggest_resume(own / "step-00000007", own).find("different run.dir") != std::string::npos,
              origin == seventh);
  }
}

TEST(Advice, OfADifferenceIsTheNewestCheckpointOfItsHistory) {
  tests::TempFolder run;
  const fs::path own = run / "own";
  EXPECT_EQ(suggest_verified(own, -1, 0), "no replay has agreed before");
  const int64_t fourth = save(own, 4, -1);
  EXPECT_EQ(suggest_verified(own, 3, 0), "the last replay that agreed was before step 3; no checkpoint is as old");
  const auto advised = [&](int64_t verified, int64_t origin, const char* name, const std::string& more = "") {
    const std::string text = suggest_verified(own, verified, origin);
    EXPECT_TRUE(text.ends_with("--resume " + (own / name).string() + more)) << text;
  };
  save(own, 7, -1);
  advised(7, 0, "step-00000007");
  advised(6, 0, "step-00000004");
  advised(7, fourth, "step-00000004");  // it went back to 4, so 7 is not of its history
  save(own, 10, -1, fourth);
  advised(9, fourth, "step-00000004", ", and set a different run.dir");
  advised(10, fourth, "step-00000010");
}

TEST(Advice, IsTheNewestProvenOneThatRemains) {
  tests::TempFolder run;
  const fs::path own = run / "own", gone = own / "step-00000006";
  for (const int64_t step : {2, 4, 6, 8}) save(own, step, step - 2);
  fs::remove_all(gone);
  EXPECT_TRUE(suggest_resume(gone, own).ends_with("--resume " + (own / "step-00000002").string()))
      << "8 and 4 are followed by nothing that remains";
  fs::remove_all(own / "step-00000002");
  tests::expect_parts(suggest_resume(gone, own), {gone.string(), "--resume never", "--resume PATH"});
  // A checkpoint saved later than the one that records its step as proven is a different checkpoint.
  save(own, 6, 2);
  tests::expect_parts(suggest_resume(run / "moved", own), {"--resume never"});
}

}  // namespace
}  // namespace trainer::run
