#include "checkpoint/inspect.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

TEST(Inspect, ReportsStateModelAndTensors) {
  TempFolder run;
  const fs::path step = save_step(run / "checkpoints", 100);
  const nlohmann::json info = inspect_json(run);
  EXPECT_EQ(info["folder"], step.string());
  EXPECT_EQ(info["step"], 100);
  EXPECT_EQ(info["tokens_seen"], 12 * 256 * 100);
  EXPECT_EQ(info["best_val_loss"], 3.25);
  EXPECT_EQ(info["gemm_tuning_hash"], "ghi");
  EXPECT_EQ(info["optimizer"], "adamw");
  EXPECT_EQ(info["model"], (nlohmann::json{{"n_layer", 2}, {"d_model", 6}}));
  EXPECT_EQ(info["parameters"], 13 * 6 + 36 + 7 + 15 + 12);  // moments do not count
  EXPECT_EQ(info["bytes"], 4 * (3 * 78 + 36 + 7) + 2 * 15 + 8 * 12);
  ASSERT_EQ(info["tensors"].size(), 7u);
  EXPECT_EQ(info["tensors"][0],
            (nlohmann::json{{"name", "wte"}, {"dtype", "fp32"}, {"shape", {13, 6}}, {"bytes", 312}}));
  expect_parts(inspect_text(step), {"step             100", "[model]\nd_model = 6\nn_layer = 2\n",
                                    "gemm_tuning_hash ghi", "blocks.0.attn.q.weight  fp32", "[6,6]", "312 B"});
}

TEST(Inspect, GivesKeysOfTheModelTheirTypes) {
  TempFolder run;
  Tensors tensors(small_model());
  Snapshot snapshot = snapshot_of(tensors, 7);
  snapshot.model_keys = {{"arch", "llama"}, {"bias", "false"},   {"n_layer", "2"}, {"rope_factor", "8.5"},
                         {"names", "[1]"},  {"rope_type", "3e"}, {"window", "0"},  {"vocab_size", "32000"}};
  CheckpointStore(run / "checkpoints", {}, fast_calls()).save(snapshot);
  const nlohmann::json model = inspect_json(run)["model"];
  EXPECT_TRUE(model["bias"].is_boolean() && model["n_layer"].is_number_integer() &&
              model["rope_factor"].is_number_float());
  EXPECT_EQ(model, (nlohmann::json{{"arch", "llama"},
                                   {"bias", false},
                                   {"n_layer", 2},
                                   {"rope_factor", 8.5},
                                   {"names", "[1]"},
                                   {"rope_type", "3e"},
                                   {"window", 0},
                                   {"vocab_size", 32000}}));
  expect_parts(inspect_text(run),
               {"\narch = \"llama\"\n", "\nbias = false\n", "\nrope_factor = 8.5\n", "[data]\nvocab_size = 32000\n"});
}

TEST(Verify, FindsNothingInAWholeCheckpoint) {
  TempFolder run;
  const fs::path step = save_step(run / "checkpoints", 100);
  for (const fs::path& path : {run.path(), run / "checkpoints", step, run / "checkpoints/latest"}) {
    const VerifyReport report = verify(path);
    EXPECT_EQ(report.folder, step);
    EXPECT_EQ(report.tensors, 7);
    EXPECT_TRUE(report.problems.empty()) << report.problems[0];
    EXPECT_NE(to_text(report).find("7 tensors, 1.21 KiB: whole"), std::string::npos) << to_text(report);
    EXPECT_EQ(to_json(report)["whole"], true);
  }
}

TEST(Verify, ListsAllProblemsOfTheOneThatLatestNames) {
  TempFolder run;
  save_step(run / "checkpoints", 100);
  const fs::path step = save_step(run / "checkpoints", 200);
  write(step / "notes.txt", "mine");
  write(step / "config.toml", std::string(content_of(step / "config.toml").size(), '#'));
  std::string bytes = content_of(step / "rank-00000.shard");
  bytes[0] = static_cast<char>(bytes[0] + 1);
  bytes[313] = 1;  // between wte and wte#m
  bytes[330] = static_cast<char>(bytes[330] + 1);
  write(step / "rank-00000.shard", bytes);
  EXPECT_EQ(verify(run).problems.size(), 5u) << to_text(verify(run));
  EXPECT_EQ(to_json(verify(run))["whole"], false);

  fs::remove(step / "COMPLETE");
  ASSERT_EQ(verify(run).problems.size(), 1u);
  EXPECT_NE(verify(run).problems[0].find("the save was interrupted"), std::string::npos);
  fs::remove(step / "manifest.json");
  EXPECT_EQ(verify(step).problems.size(), 1u);
  EXPECT_THROW(verify(run / "absent"), Error);
}

}  // namespace
}  // namespace trainer::checkpoint
