// Evaluation with sliding windows compared with the definition: the loss of each token given the earlier tokens of its
// window.
#include "run/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/token_file.h"
#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"
#include "unit/data/fixtures.h"

namespace trainer::tests {
namespace {

std::vector<int32_t> random_tokens(int64_t count) {
  const PhiloxKey key = philox_key(11, "text");
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(philox_at(key, static_cast<uint64_t>(i)) % kTinyVocab));
  return tokens;
}

data::TokenDataset dataset_of(const TempFolder& folder, const std::vector<int32_t>& tokens, int64_t seq_len,
                              int32_t eos = -1) {
  std::string bytes =
      data::token_header({.tokens = static_cast<int64_t>(tokens.size()), .vocab_size = kTinyVocab, .eos = eos});
  for (const int32_t token : tokens) bytes += {static_cast<char>(token & 0xFF), static_cast<char>(token >> 8)};
  const std::string path = data::testing::write(folder / "text.bin", bytes);
  return {std::make_shared<data::TokenStream>(std::vector<std::string>{path}), seq_len, 0};
}

/// Returns the loss of the last of `tokens`, given the preceding ones. The model sees nothing else.
double loss_after(train::Trainer& trainer, std::span<const int32_t> tokens) {
  data::TokenBatch batch;
  batch.resize(trainer.micro_batch(), trainer.model().seq_len());
  std::ranges::fill(batch.weights, 0.0f);
  std::ranges::fill(batch.ids, 1);
  std::ranges::fill(batch.targets, 1);
  const size_t context = tokens.size() - 1;
  std::ranges::copy(tokens.first(context), batch.ids.begin());
  batch.targets[context - 1] = tokens.back();
  batch.weights[context - 1] = 1;
  return trainer.loss_sum(batch);
}

/// Directly from the definition: each window scores the tokens that no earlier window has predicted. Tokens do not see
/// those before the last `eos`.
std::pair<double, int64_t> brute_force(train::Trainer& trainer, std::span<const int32_t> tokens, int64_t stride,
                                       int32_t eos = -1) {
  const int64_t length = trainer.model().seq_len(), count = static_cast<int64_t>(tokens.size());
  double nats = 0;
  int64_t predicted = 0;
  for (int64_t begin = 0; predicted < count - 1; begin += stride)
    for (int64_t target = predicted + 1; target <= std::min(begin + length, count - 1); ++target, ++predicted) {
      int64_t seen = target - 1;
      while (seen > begin && tokens[static_cast<size_t>(seen - 1)] != eos) --seen;
      nats += loss_after(trainer, tokens.subspan(static_cast<size_t>(seen), static_cast<size_t>(target - seen + 1)));
    }
  return {nats / static_cast<double>(predicted), predicted};
}

TEST(Evaluate, SlidingWindowsPredictEveryTokenOnceFromItsContext) {
  const config::Config c = tiny_config();  // sequences of 11, micro-batches of 2
  Tiny run(c, DType::f64, 2);
  for (int64_t n = 1; n <= 3; ++n) run.step(n, 1e-2);
  const TempFolder folder;
  for (const int64_t count : {12, 13, 34, 57}) {
    const std::vector<int32_t> tokens = random_tokens(count);
    const data::TokenDataset dataset = dataset_of(folder, tokens, c.model.seq_len);
    for (const int64_t stride : {1, 4, 10, 11}) {
      const auto [loss, predicted] = brute_force(run.trainer, tokens, stride);
      const auto result = run::evaluate(run.trainer, dataset, {.stride = stride}, nullptr, {});
      EXPECT_EQ(predicted, count - 1);
      EXPECT_EQ(result.report.tokens, count - 1);
      EXPECT_NEAR(result.report.loss, loss, 1e-13 * loss) << count << " tokens, stride " << stride;
      EXPECT_NEAR(result.report.perplexity, std::exp(loss), 1e-12 * std::exp(loss));
    }
  }
}

TEST(Evaluate, SlidingWindowsKeepDocumentsApart) {
  config::Config c = tiny_config(config::Arch::llama);  // RoPE: only distances between tokens matter
  c.data.separate_documents = true;
  Tiny run(c, DType::f64, 2);
  for (int64_t n = 1; n <= 3; ++n) run.step(n, 1e-2);
  const TempFolder folder;
  constexpr int32_t kEos = 5;
  std::vector<int32_t> tokens = random_tokens(57);
  for (const size_t end : {3, 4, 11, 30, 47}) tokens[end] = kEos;
  const data::TokenDataset dataset = dataset_of(folder, tokens, c.model.seq_len, kEos);
  for (const int64_t stride : {1, 4, 10, 11}) {
    const double loss = brute_force(run.trainer, tokens, stride, kEos).first;
    EXPECT_NE(loss, brute_force(run.trainer, tokens, stride).first);
    EXPECT_NEAR(run::evaluate(run.trainer, dataset, {.stride = stride}, nullptr, {}).report.loss, loss, 1e-12 * loss);
  }
}

TEST(Evaluate, WindowsBehindEachOtherAreThoseOfTheLongestStride) {
  const config::Config c = tiny_config();
  Tiny run(c, DType::f64, 2);
  run.step(1);
  const TempFolder folder;
  const data::TokenDataset whole = dataset_of(folder, random_tokens(5 * 11 + 1), 11);  // no incomplete window
  const auto apart = run::evaluate(run.trainer, whole, {}, nullptr, {}),
             sliding = run::evaluate(run.trainer, whole, {.stride = 11}, nullptr, {});
  EXPECT_EQ(apart.report.loss, sliding.report.loss);
  EXPECT_EQ(apart.report.tokens, sliding.report.tokens);
  const data::TokenDataset more = dataset_of(folder, random_tokens(5 * 11 + 8), 11);
  EXPECT_EQ(run::evaluate(run.trainer, more, {}, nullptr, {}).report.tokens, 55);
  EXPECT_EQ(run::evaluate(run.trainer, more, {.stride = 11}, nullptr, {}).report.tokens, 62);
  // One group of global_batch = 4 windows: the first 4.
  EXPECT_EQ(run::evaluate(run.trainer, more, {.groups = 1, .stride = 11}, nullptr, {}).report.tokens, 44);
  EXPECT_EQ(run::evaluate(run.trainer, more, {.groups = 1, .stride = 2}, nullptr, {}).report.tokens, 11 + 3 * 2);
}

TEST(Evaluate, SlidingWindowsAreTheSameOnRanksThatShareSequences) {
  const TempFolder folder;
  for (const LayoutCase& one :
       layouts_named({"Shards4Data1LlamaShared4Gather", "Shards4Data1LlamaShared4RingMasks",
                      "Shards4Data2Gpt2Shared4Heads2Ring", "Tensor2Data1SpEach2LlamaShared2Gather"})) {
    const data::TokenDataset dataset = dataset_of(folder, random_tokens(150), one.config.model.seq_len, 5);
    const auto loss_on = [&](const config::Config& layout) {
      double loss = 0;
      comm::run_on_threads(ranks_of(layout), {.timeout_s = 60}, [&](comm::World& world) {
        Tiny run(&world, layout, DType::f64, 1);
        const auto result = run::evaluate(run.trainer, dataset, {.stride = 7}, nullptr, {});
        EXPECT_EQ(result.report.tokens, 149);
        if (world.first()) loss = result.report.loss;
      });
      return loss;
    };
    const double single = loss_on(on_one_rank(one.config));
    EXPECT_NEAR(loss_on(one.config), single, 1e-12 * single) << one;
  }
}

TEST(Evaluate, SlidingWindowsAreTheSameOnManyRanks) {
  const TempFolder folder;
  const config::Config c = configure(MegatronLayout{.tensor = 2, .data = 2, .micro_batch = 1});
  const data::TokenDataset dataset = dataset_of(folder, random_tokens(150), c.model.seq_len);
  const auto loss_on = [&](const config::Config& layout, int ranks) {
    double loss = 0;
    comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, layout, DType::f64, 1);
      EXPECT_EQ(run.trainer.batches_at_once(), layout.parallel.stages > 1 ? 8 : 1);
      const auto result = run::evaluate(run.trainer, dataset, {.stride = 5}, nullptr, {});
      EXPECT_EQ(result.report.tokens, 149);
      if (world.first()) loss = result.report.loss;
    });
    return loss;
  };
  const double single = loss_on(on_one_rank(c), 1);
  EXPECT_NEAR(loss_on(c, 4), single, 1e-12 * single);
  // Stages: 26 windows, of which each replica evaluates a list of 8 and one of 5.
  config::Config stages = c;
  stages.parallel.tensor = 1;
  const double one_stage = loss_on(stages, 2);
  stages.parallel.stages = 2;
  stages.parallel.stage_layers = {1, 1};
  stages.train.global_batch = 16;
  EXPECT_EQ(loss_on(stages, 4), one_stage);
}

}  // namespace
}  // namespace trainer::tests
