#include "checkpoint/merge.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/inspect.h"
#include "checkpoint/strip.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

const std::vector<Spec> kWeights{{"wte", {500, 33}}, {"scale", {3}, DType::f64}, {"head.weight", {40}}};

/// Saves a checkpoint whose values depend on `seed`.
fs::path saved(const fs::path& folder, int64_t seed, std::vector<Spec> specs = kWeights,
               const std::function<void(Snapshot&)>& edit = {}) {
  std::vector<Spec> all;
  for (const Spec& spec : specs)
    for (const char* part : {"", "#m", "#v"}) all.push_back({spec.name + part, spec.shape, spec.dtype});
  Tensors tensors(all);
  for (const TensorSlice& slice : tensors.slices)
    for (int64_t i = 0; i < slice.shape.count(); ++i) {
      const double value = std::sin(static_cast<double>(seed * 1000 + i)) * std::exp2(static_cast<double>(i % 9));
      if (slice.local.dtype == DType::f64)
        slice.local.as<double>()[i] = value;
      else
        slice.local.as<float>()[i] = static_cast<float>(value);
    }
  Snapshot snapshot = snapshot_of(tensors, seed);
  if (edit) edit(snapshot);
  return CheckpointStore(folder, {}).save(snapshot);
}

/// Returns the elements of a tensor in double.
std::vector<double> values_of(const fs::path& step, const Spec& spec) {
  const Reader reader(step);
  Tensors tensors(kWeights);
  reader.load(tensors.slices, {.weights_only = true});
  std::vector<double> values;
  for (const TensorSlice& slice : tensors.slices)
    if (slice.name == spec.name)
      for (int64_t i = 0; i < slice.shape.count(); ++i)
        values.push_back(spec.dtype == DType::f64 ? slice.local.as<double>()[i]
                                                  : static_cast<double>(slice.local.as<float>()[i]));
  return values;
}

TEST(Merge, WeightsAreTheMeanRoundedOnce) {
  TempFolder folder;
  const std::vector<fs::path> steps = {saved(folder / "a", 3), saved(folder / "b", 8), saved(folder / "c", 21)};
  const std::vector<fs::path> given = {folder / "c", folder / "a", steps[1]};
  const Merged done = merge(given, folder / "out/mean");
  EXPECT_EQ(done.sources, steps) << "the oldest first, in any order";
  EXPECT_EQ(done.tensors, 3);
  EXPECT_EQ(verify(folder / "out/mean").problems, std::vector<std::string>());
  for (const Spec& spec : kWeights) {
    std::vector<double> sums(static_cast<size_t>(spec.shape.count()));
    for (const fs::path& step : steps) {
      const std::vector<double> values = values_of(step, spec);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    }
    const std::vector<double> mean = values_of(folder / "out/mean", spec);
    for (size_t i = 0; i < sums.size(); ++i) {
      const double expected = sums[i] / 3;
      ASSERT_EQ(mean[i], spec.dtype == DType::f64 ? expected : static_cast<double>(static_cast<float>(expected)))
          << spec.name << " " << i;
    }
  }
  const Reader reader(folder / "out/mean");
  const Snapshot& header = reader.header();
  EXPECT_EQ(header.state.step, 21);
  EXPECT_EQ(header.model_keys, Reader(steps[2]).header().model_keys);
  ASSERT_EQ(header.merged_from.size(), 3u);
  EXPECT_EQ(header.merged_from[1], (MergedSource{steps[1].string(), 8, Reader(steps[1]).manifest().sequence}));
  EXPECT_NE(inspect_text(folder / "out/mean").find(steps[0].string() + ", step 3"), std::string::npos);
  Tensors all(kWeights);
  all.slices.push_back(all.slices[0]);
  all.slices.back().name = "wte#m";
  expect_error(Code::checkpoint, {"weights but no optimizer state"},
               [&] { Reader(folder / "out/mean").load(all.slices, {}); });
}

TEST(Merge, DecayWeightsBySteps) {
  TempFolder folder;
  const std::vector<fs::path> steps = {saved(folder / "a", 100), saved(folder / "b", 200), saved(folder / "c", 400)};
  const double shares[] = {0.28712091374556914, 0.31902323749507683, 0.39385584875935403};
  const Merged done = merge(steps, folder / "ema", 0.9);
  ASSERT_EQ(done.shares.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(done.shares[i], shares[i]);
  for (const Spec& spec : kWeights) {
    const std::vector<double> mean = values_of(folder / "ema", spec);
    std::vector<double> expected(mean.size());
    for (size_t k = 0; k < 3; ++k) {
      const std::vector<double> values = values_of(steps[k], spec);
      for (size_t i = 0; i < values.size(); ++i) expected[i] += shares[k] * values[i];
    }
    const double rounding = spec.dtype == DType::f64 ? 1e-13 : 2e-5;  // values are up to 256
    for (size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(mean[i], expected[i], rounding) << spec.name << " " << i;
  }
  EXPECT_EQ(merge(std::vector{steps[0]}, folder / "one", 0.5).shares, std::vector<double>{1});
  expect_error(Code::checkpoint, {"is of step 100", "of step 400", "--decay"}, [&] {
    merge(std::vector<fs::path>{steps[2], saved(folder / "d", 100)}, folder / "out", 0.9);
  });
}

TEST(Merge, OneCheckpointKeepsItsWeights) {
  TempFolder folder;
  const fs::path step = saved(folder / "run", 5);
  merge(std::vector{step}, folder / "one");
  for (const Spec& spec : kWeights) EXPECT_EQ(values_of(folder / "one", spec), values_of(step, spec)) << spec.name;
}

TEST(Merge, RejectsOtherModelsAndTokenizers) {
  TempFolder folder;
  const fs::path good = saved(folder / "good", 3);
  struct Case {
    const char* name;
    std::vector<Spec> specs;
    std::function<void(Snapshot&)> edit;
    std::vector<std::string> parts;
  };
  std::vector<Spec> wider = kWeights, fewer(kWeights.begin(), kWeights.begin() + 2);
  wider[0].shape = {500, 34};
  for (const auto& [name, specs, edit, parts] : std::vector<Case>{
           {"keys", kWeights, [](Snapshot& s) { s.model_keys["n_head"] = "77"; }, {"n_head: 77"}},
           {"new key", kWeights, [](Snapshot& s) { s.model_keys["window"] = "5"; }, {"window: 5", "has none"}},
           {"tokenizer", kWeights, [](Snapshot& s) { s.tokenizer_hash = "xyz"; }, {"tokenizer: xyz", "abc"}},
           {"shape", wider, {}, {"wte: fp32 [500, 34]", "fp32 [500, 33]"}},
           {"tensors", fewer, {}, {"head.weight: nothing"}}}) {
    std::vector<std::string> all{(folder / name).string(), good.string(), "merge checkpoints of one model"};
    all.insert(all.end(), parts.begin(), parts.end());
    saved(folder / name, 4, specs, edit);
    expect_error(Code::checkpoint, all, [&] { merge(std::vector<fs::path>{good, folder / name}, folder / "out"); });
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
  expect_error(Code::checkpoint, {good.string(), "named twice"}, [&] {
    merge(std::vector<fs::path>{good, folder / "good"}, folder / "out");
  });
}

}  // namespace
}  // namespace trainer::checkpoint
