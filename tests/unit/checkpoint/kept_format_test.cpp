// A checkpoint of format 2, with only the members that the first version writes, is kept next to this file: it must
// load bit for bit whatever later versions add.
#include <gtest/gtest.h>

#include "checkpoint/inspect.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

TEST(KeptFormat, TwoLoads) {
  const fs::path folder = fs::path(TRAINER_SOURCE_DIR) / "tests/unit/checkpoint/format-2";
  EXPECT_TRUE(verify(folder).problems.empty()) << to_text(verify(folder));
  const Reader reader(folder);
  const Snapshot& header = reader.header();
  EXPECT_EQ(header.state.step, 3);
  EXPECT_EQ(header.state.adam_step, 2);
  EXPECT_EQ(header.state.samples_seen, 24);
  EXPECT_EQ(header.state.tokens_seen, 24 * 256);
  EXPECT_EQ(header.state.best_val_loss, 2.5);
  EXPECT_EQ(header.state.best_step, 2);
  EXPECT_EQ(header.state.proven_step, 1);
  EXPECT_EQ(header.state.norms, (std::vector<double>{1.5, 1.25}));
  EXPECT_EQ(header.compute, "bf16");
  EXPECT_TRUE(header.tied);
  EXPECT_EQ(header.optimizer, "adamw");
  EXPECT_EQ(header.tokenizer_hash, "0123");
  EXPECT_EQ(header.data_hash, "4567");
  EXPECT_EQ(header.val_hash, "89");
  EXPECT_EQ(header.gemm_tuning_hash, "");
  EXPECT_EQ(header.model_keys,
            (std::map<std::string, std::string>{{"arch", "gpt2"}, {"n_layer", "1"}, {"window", "8"}}));
  EXPECT_EQ(header.config_toml, "[run]\nname = \"kept\"\n");
  EXPECT_EQ(header.tokenizer, "pieces\n");

  Tensors tensors({{"wte", {5, 3}}, {"wte#m", {5, 3}}, {"scale", {3}, DType::f64}, {"half", {2, 2}, DType::bf16}});
  reader.load(tensors.slices, {.tied = true});
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(tensors.slices[0].local.as<float>()[i], 0.5f * static_cast<float>(i) - 3);
    EXPECT_EQ(tensors.slices[1].local.as<float>()[i], 1.0f / static_cast<float>(i + 1));
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(tensors.slices[2].local.as<double>()[i], 1.0 / (i + 3));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tensors.slices[3].local.as<bf16>()[i].bits, 0x3f80 + i);
}

}  // namespace
}  // namespace trainer::checkpoint
