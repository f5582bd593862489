#include "checkpoint/store.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

void save_step(CheckpointStore& store, int64_t step, int64_t best_step = -1, int64_t proven_step = -1) {
  Tensors tensors(small_model());
  tensors.fill(static_cast<uint64_t>(step));
  Snapshot snapshot = snapshot_of(tensors, step);
  snapshot.state.best_step = best_step;
  snapshot.state.proven_step = proven_step;
  store.save(snapshot);
}

std::vector<std::string> steps_in(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder);
  std::erase(names, "latest");
  return names;
}

TEST(CheckpointStore, SavesTheFilesOfTheContractAndPointsLatestToThem) {
  TempFolder run;
  CheckpointStore store(run / "checkpoints", {});
  save_step(store, 100);
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"latest", "step-00000100"}));
  EXPECT_EQ(
      names_in(run / "checkpoints/step-00000100"),
      (std::vector<std::string>{"COMPLETE", "config.toml", "manifest.json", "rank-00000.shard", "tokenizer.model"}));
  EXPECT_EQ(content_of(run / "checkpoints/latest"), "step-00000100\n");
}

TEST(CheckpointStore, GivesBackStateConfigTokenizerAndTensors) {
  TempFolder run;
  CheckpointStore store(run / "checkpoints", {});
  Tensors tensors(small_model());
  tensors.fill(7);
  Snapshot saved = snapshot_of(tensors, 7);
  saved.state.best_val_loss = 1.0 / 3;
  saved.state.proven_step = 5;
  saved.state.verified_step = 4;
  saved.state.loss = 2.0 / 3;
  saved.state.val_loss = 4.0 / 3;
  saved.optimizer = "muon";
  saved.state.losses = {10.0 / 3, 3.25};
  saved.state.norms = {1.0 / 7};
  saved.tied = true;
  const Reader reader(store.save(saved));
  const Snapshot& header = reader.header();
  EXPECT_EQ(header.state.step, 7);
  EXPECT_EQ(header.state.adam_step, 6);
  EXPECT_EQ(header.state.samples_seen, 84);
  EXPECT_EQ(header.state.tokens_seen, 84 * 256);
  EXPECT_EQ(header.state.best_val_loss, 1.0 / 3);
  EXPECT_EQ(header.state.best_step, 6);
  EXPECT_EQ(header.state.proven_step, 5);
  EXPECT_EQ(header.state.verified_step, 4);
  EXPECT_EQ(header.state.loss, 2.0 / 3);
  EXPECT_EQ(header.state.val_loss, 4.0 / 3);
  EXPECT_EQ(header.optimizer, "muon");
  EXPECT_EQ(header.state.losses, saved.state.losses);
  EXPECT_EQ(header.state.norms, saved.state.norms);
  EXPECT_EQ(header.config_toml, saved.config_toml);
  EXPECT_EQ(header.tokenizer, saved.tokenizer);
  EXPECT_EQ(header.tokenizer_hash, "abc");
  EXPECT_EQ(header.data_hash, "def");
  EXPECT_EQ(header.gemm_tuning_hash, "ghi");
  EXPECT_EQ(header.model_keys, saved.model_keys);
  EXPECT_EQ(header.compute, "fp32");
  EXPECT_TRUE(header.tied);
  EXPECT_EQ(load_newest(run, small_model()), 7);
}

TEST(CheckpointStore, KeepsAMissingLossAndAnEmptyTokenizer) {
  TempFolder run;
  CheckpointStore store(run / "checkpoints", {});
  Tensors tensors(small_model());
  Snapshot saved = snapshot_of(tensors, 1);
  saved.state.best_val_loss = std::numeric_limits<double>::quiet_NaN();
  saved.tokenizer.clear();
  const Reader reader(store.save(saved));
  EXPECT_TRUE(std::isnan(reader.header().state.best_val_loss));
  EXPECT_EQ(reader.header().tokenizer, "");
  EXPECT_FALSE(fs::exists(reader.folder() / "tokenizer.model"));
}

TEST(CheckpointStore, ReplacesAStepSavedBefore) {
  for (const bool without_exchange : {false, true}) {
    TempFolder folder;
    FaultyCalls calls;
    calls.without_exchange = without_exchange;
    CheckpointStore store(folder, {}, calls);
    Tensors tensors(small_model());
    tensors.fill(1);
    store.save(snapshot_of(tensors, 100));
    tensors.fill(100);
    store.save(snapshot_of(tensors, 100));
    EXPECT_EQ(load_newest(folder, small_model()), 100);
    EXPECT_EQ(steps_in(folder), (std::vector<std::string>{"step-00000100"}));
  }
}

TEST(CheckpointStore, RejectsSlicesThatDoNotCoverTheirTensor) {
  TempFolder folder;
  CheckpointStore store(folder, {});
  Tensors tensors(small_model());
  Snapshot snapshot = snapshot_of(tensors, 1);
  snapshot.tensors[0].runs = {{0, 0, 77}};
  EXPECT_THROW(store.save(snapshot), Error);
  snapshot.tensors[0].runs = {{0, 0, 40}, {39, 40, 38}};
  EXPECT_THROW(store.save(snapshot), Error);
  snapshot.tensors[0].runs = {{0, 0, 40}, {40, 41, 38}};  // beyond the local storage
  EXPECT_THROW(store.save(snapshot), Error);
  EXPECT_TRUE(names_in(folder).empty());
}

TEST(CheckpointStore, RemovesLeftOversAtTheStartAndNothingElse) {
  TempFolder folder;
  for (const char* name : {".saving-step-00000200-1.2", ".deleting-step-00000050-1.2", "step-00000200.mine", ".mine"}) {
    fs::create_directories(folder / name);
    write(folder / name / "file", "x");
  }
  write(folder / ".latest-step-00000200-1.2", "step-00000200\n");
  CheckpointStore store(folder, {});
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{".mine", "step-00000200.mine"}));
}

TEST(CheckpointStore, MakesItsFolderAgainAfterItWasRemoved) {
  TempFolder run;
  CheckpointStore store(run / "a/checkpoints", {});
  fs::remove_all(run / "a");
  save_step(store, 100);
  EXPECT_EQ(load_newest(run / "a", small_model()), 100);
}

TEST(CheckpointStore, PutsBackAStepThatWasPushedAside) {
  TempFolder folder;
  {
    CheckpointStore store(folder, {});
    save_step(store, 100);
  }
  fs::rename(folder / "step-00000100", folder / ".replaced-step-00000100-1.2");
  Warnings warnings;
  EXPECT_EQ(load_newest(folder, small_model()), 100) << "found even before the next start";
  CheckpointStore store(folder, {});
  EXPECT_EQ(steps_in(folder), (std::vector<std::string>{"step-00000100"}));
  EXPECT_EQ(load_newest(folder, small_model()), 100);
}

TEST(Descendants, AreWhatWasSavedAfterItsPathWasResumed) {
  // 10 and 20 were saved by a run that was not resumed from a path, 30 after resuming from 10, 40 after 30.
  const auto entry = [](int64_t sequence, int64_t origin) {
    Entry one{.folder = std::to_string(sequence), .sequence = sequence};
    one.state.origin = origin;
    return one;
  };
  const auto found = [](const std::vector<Entry>& entries, int64_t sequence) {
    std::vector<int64_t> sequences;
    for (const Entry& each : descendants(entries, sequence)) sequences.push_back(each.sequence);
    return sequences;
  };
  using Sequences = std::vector<int64_t>;
  const std::vector<Entry> entries{entry(40, 30), entry(30, 10), entry(20, 0), entry(10, 0)};
  EXPECT_EQ(found(entries, 10), (Sequences{40, 30}));
  EXPECT_EQ(found(entries, 30), (Sequences{40}));
  EXPECT_EQ(found(entries, 20), Sequences());
  EXPECT_EQ(found(entries, 0), Sequences());
  EXPECT_EQ(found({entries.begin() + 2, entries.end()}, 10), Sequences()) << "20 was resumed, but not from a path";
  EXPECT_EQ(found({entry(40, 5), entry(30, 10), entry(10, 0)}, 10), Sequences()) << "30 is not the newest";
  EXPECT_EQ(found({entry(40, 30), entry(20, 0), entry(10, 0)}, 10), Sequences()) << "30 was removed";
  EXPECT_EQ(found({entry(40, 40), entry(30, 40)}, 30), Sequences()) << "edited by hand: a cycle";
  EXPECT_EQ(found({entry(40, 5)}, 5), (Sequences{40})) << "a branch of a different run";
  EXPECT_EQ(found({}, 5), Sequences());
}

TEST(Retention, KeepsTheNewestByTheOrderOfSaving) {
  struct Case {
    Retention retention;
    std::vector<int64_t> saved, kept;
  };
  for (const Case& c : {Case{{.keep = 2}, {10, 20, 30, 40}, {30, 40}},
                        {{.keep = 0, .keep_every = 20, .keep_best = true}, {10, 20, 30}, {10, 20, 30}},
                        {{.keep = 2}, {400, 500, 110, 120}, {110, 120}}}) {  // a run that resumed from an earlier step
    TempFolder folder;
    CheckpointStore store(folder, c.retention);
    for (const int64_t step : c.saved) save_step(store, step);
    std::vector<std::string> kept;
    for (const int64_t step : c.kept) kept.push_back(format("step-{:08}", step));
    EXPECT_EQ(steps_in(folder), kept);
    EXPECT_EQ(load_newest(folder, small_model()), c.saved.back());
  }
}

TEST(Retention, KeepsMultiplesAndTheBest) {
  TempFolder folder;
  CheckpointStore store(folder, {.keep = 1, .keep_every = 100, .keep_best = true});
  for (const int64_t step : {50, 100, 150, 200, 250, 300, 350}) save_step(store, step, step >= 150 ? 150 : -1);
  EXPECT_EQ(steps_in(folder), (std::vector<std::string>{"step-00000100", "step-00000150", "step-00000200",
                                                        "step-00000300", "step-00000350"}));
  save_step(store, 400, 400);  // 400 is better: 150 is removed
  EXPECT_EQ(steps_in(folder),
            (std::vector<std::string>{"step-00000100", "step-00000200", "step-00000300", "step-00000400"}));
}

TEST(Retention, KeepsTheProvenOneUntilANewerOneIsProven) {
  TempFolder folder;
  CheckpointStore store(folder, {.keep = 1});
  for (const int64_t step : {10, 20, 30}) save_step(store, step, -1, step == 10 ? -1 : 10);
  EXPECT_EQ(steps_in(folder), (std::vector<std::string>{"step-00000010", "step-00000030"}));
  store.remove_old(30);
  EXPECT_EQ(steps_in(folder), (std::vector<std::string>{"step-00000030"}));
}

TEST(Retention, KeepsTheNewestVerifiedOne) {
  TempFolder folder;
  CheckpointStore store(folder, {.keep = 1});
  Tensors tensors(small_model());
  for (const auto& [step, verified] : {std::pair{10, -1}, {20, 20}, {30, 20}, {40, 20}, {50, 49}, {60, 60}}) {
    Snapshot snapshot = snapshot_of(tensors, step);
    snapshot.state.verified_step = verified;
    store.save(snapshot);
    const std::vector<std::string> kept = steps_in(folder);
    if (step == 40) {
      EXPECT_EQ(kept, (std::vector<std::string>{"step-00000020", "step-00000040"}));
    } else if (step == 50) {
      EXPECT_EQ(kept, (std::vector<std::string>{"step-00000040", "step-00000050"}));
    }
  }
  EXPECT_EQ(steps_in(folder), (std::vector<std::string>{"step-00000060"}));
}

TEST(Retention, LeavesUnknownAndDamagedFoldersUnchanged) {
  TempFolder folder;
  CheckpointStore store(folder, {.keep = 1});
  save_step(store, 10);
  fs::copy(folder / "step-00000010", folder / "step-00000010.good");
  save_step(store, 20);
  fs::remove(folder / "step-00000020" / "COMPLETE");
  save_step(store, 30);
  EXPECT_EQ(steps_in(folder), (std::vector<std::string>{"step-00000010.good", "step-00000020", "step-00000030"}));
}

}  // namespace
}  // namespace trainer::checkpoint
