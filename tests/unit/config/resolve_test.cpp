#include "config/resolve.h"

#include <gtest/gtest.h>

#include "config/keys.h"
#include "config/text.h"

namespace trainer::config {
namespace {

TEST(Resolve, GivesTheGpt2FamilyItsDefaults) {
  Config config = defaults();
  resolve(config);
  EXPECT_EQ(config.model.n_kv_head, 12);
  EXPECT_EQ(config.model.d_ff, 3072);
  EXPECT_EQ(config.model.tie_embeddings, true);
  EXPECT_EQ(config.model.bias, true);
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_DOUBLE_EQ(config.optim.min_lr, 6e-5);
  EXPECT_EQ(config.optim.warmup_steps, 50);
  EXPECT_EQ(config.data.val_fraction, 0.05);
}

TEST(Resolve, GivesTheLlamaFamilyItsDefaults) {
  Config config = defaults();
  config.model.arch = Arch::llama;
  config.model.d_model = 4096;
  resolve(config);
  EXPECT_EQ(config.model.d_ff, 10944);  // 8/3 · 4096 = 10922.67, rounded up to a multiple of 64: 171 · 64
  EXPECT_EQ(config.model.tie_embeddings, false);
  EXPECT_EQ(config.model.bias, false);
  config.model.d_model = 384, config.model.d_ff = 0;
  resolve(config);
  EXPECT_EQ(config.model.d_ff, 1024);  // exactly 8/3 · 384
}

TEST(Resolve, LeavesGivenValuesUnchanged) {
  Config config = defaults();
  config.model.n_kv_head = 4, config.model.d_ff = 100, config.model.tie_embeddings = false, config.model.bias = false;
  config.model.norm_eps = 1e-4, config.model.rope_theta = 5, config.model.window_rope_theta = 0;
  config.model.window = 0, config.model.window_full_every = 0;
  config.optim.min_lr = 0, config.optim.warmup_steps = 0;
  config.data.val_fraction = 0, config.data.separate_documents = false;
  config.run.name = "tiny", config.train.steps = 7, config.train.balance_loss = 0, config.train.task_interval = 3;
  const std::string before = to_toml(config);
  config.run.dir = "x";
  resolve(config);
  config.run.dir = "runs/{name}";
  EXPECT_EQ(to_toml(config), before);
}

TEST(Resolve, NamesTheRunAfterItsFileAndFillsItIntoTheFolder) {
  Config config = defaults();
  config.path = "some/where/shakespeare.v2.toml";
  config.run.dir = "out/{name}/{name}";
  resolve(config);
  EXPECT_EQ(config.run.name, "shakespeare.v2");
  EXPECT_EQ(config.run.dir, "out/shakespeare.v2/shakespeare.v2");
  Config nameless = defaults();
  resolve(nameless);
  EXPECT_EQ(nameless.run.dir, "runs/run");
}

TEST(Resolve, SurvivesANameThatLooksLikeThePlaceholder) {
  Config config = defaults();
  config.run.name = "{name}{name}";
  resolve(config);
  EXPECT_EQ(config.run.dir, "runs/{name}{name}");
}

TEST(Resolve, HasNoValidationShareWithValidationFiles) {
  Config config = defaults();
  config.data.val = {"val.txt"};
  resolve(config);
  EXPECT_EQ(config.data.val_fraction, 0);
}

TEST(Resolve, TakesNoReportWithoutTheMetricsItIsMadeFrom) {
  Config config = defaults();
  config.log.jsonl = false;
  resolve(config);
  EXPECT_FALSE(config.log.report);
  config.log.report = true;
  config.origins["log.report"] = {};
  resolve(config);
  EXPECT_TRUE(config.log.report) << "asked for: validate() refuses it";
}

TEST(TotalSteps, FillsTheRequestedTokensRoundedUp) {
  Config config = defaults();
  config.train.global_batch = 3, config.model.seq_len = 5, config.train.tokens = 46;
  EXPECT_EQ(total_steps(config), 4);
  resolve(config);
  EXPECT_EQ(config.train.steps, 0) << "tokens stay what the length is given in";
  config.train.tokens = 45;
  EXPECT_EQ(total_steps(config), 3);
  config.train.steps = 9, config.train.tokens = 0;
  EXPECT_EQ(total_steps(config), 9);
}

}  // namespace
}  // namespace trainer::config
