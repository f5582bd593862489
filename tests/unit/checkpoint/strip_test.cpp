#include "checkpoint/strip.h"

#include <gtest/gtest.h>

#include "base/name_lock.h"
#include "checkpoint/inspect.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

const std::vector<Spec> kWeights{{"wte", {500, 33}}, {"scale", {3}, DType::f64}, {"head.weight", {40}}};

std::vector<Spec> with_moments() {
  std::vector<Spec> all;
  for (const Spec& spec : kWeights)
    for (const char* part : {"", "#m", "#v"}) all.push_back({spec.name + part, spec.shape, spec.dtype});
  return all;
}

fs::path saved(const fs::path& folder) {
  Random random(7);
  Tensors tensors(with_moments(), random);
  tensors.fill(7);
  return CheckpointStore(folder, {}).save(snapshot_of(tensors, 3));
}

TEST(Strip, KeepsTheWeightsAndAllThatIsSaidOfThem) {
  TempFolder folder;
  const fs::path step = saved(folder / "run"), output = folder / "a/weights";
  const Stripped done = strip(folder / "run", output);
  EXPECT_EQ(done.source, step);
  EXPECT_EQ(done.tensors, 3);
  EXPECT_EQ(done.bytes, 500 * 33 * 4 + 3 * 8 + 40 * 4);
  EXPECT_EQ(verify(output).problems, std::vector<std::string>());
  const Reader whole(step), stripped(output);
  EXPECT_EQ(stripped.header().config_toml, whole.header().config_toml);
  EXPECT_EQ(stripped.header().tokenizer, whole.header().tokenizer);
  EXPECT_EQ(stripped.header().state.step, 3);
  EXPECT_EQ(stripped.header().model_keys, whole.header().model_keys);
  Tensors loaded(kWeights);
  stripped.load(loaded.slices, {.weights_only = true});
  EXPECT_EQ(loaded.difference(7), "");
}

TEST(Strip, IsNothingThatARunCanGoOnFrom) {
  TempFolder folder;
  saved(folder / "run");
  strip(folder / "run", folder / "weights");
  Tensors all(with_moments());
  expect_error(Code::checkpoint, {"weights but no optimizer state"},
               [&] { Reader(folder / "weights").load(all.slices, {}); });
}

TEST(Strip, RemovesWhatAKilledProcessLeft) {
  TempFolder folder;
  saved(folder / "run");
  // Only the first two names are removed. The rest belong to different targets, or have a different form.
  const std::vector<std::string> kept = {".writing-weight-7fff", ".writing-weights", ".writing-weights-2-1", "run",
                                         "weights"};
  for (const char* name : {".writing-weights-7fff", ".writing-weights-1", ".writing-weight-7fff", ".writing-weights",
                           ".writing-weights-2-1"})
    fs::create_directories(folder / name / "half");
  strip(folder / "run", folder / "weights");
  EXPECT_EQ(names_in(folder), kept);
}

TEST(Strip, LeavesTheFolderThatAnotherProcessIsWriting) {
  TempFolder folder;
  saved(folder / "run");
  fs::create_directories(folder / ".writing-weights-1/half");
  {
    const std::optional<NameLock> lock = NameLock::take(folder / ".lock-weights");
    expect_error(Code::io, {"weights: another process is writing it"},
                 [&] { strip(folder / "run", folder / "weights"); });
    EXPECT_TRUE(fs::exists(folder / ".writing-weights-1/half"));
  }
  strip(folder / "run", folder / "weights/.");
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"run", "weights"}));
}

TEST(Strip, LeavesNothingWhereItFails) {
  TempFolder folder;
  const fs::path step = saved(folder / "run");
  EXPECT_THROW(strip(step, folder / "run"), Error) << "there is something already";
  std::string bytes = content_of(step / "rank-00000.shard");
  bytes[1000] ^= 1;  // in a weight: moments are not read
  write(step / "rank-00000.shard", bytes);
  EXPECT_THROW(strip(step, folder / "weights"), Error);
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"run"});
}

}  // namespace
}  // namespace trainer::checkpoint
