// Losses of single sequences, compared with the reference model in double precision and on every kind of layout.
#include "train/scorer.h"

#include <gtest/gtest.h>

#include <mutex>

#include "reference/reference_model.h"
#include "rigs/layout_cases.h"

namespace trainer::tests {
namespace {

/// Random tokens with a weight of 0, 1/2 or 1; batch `replica` of many.
data::TokenBatch random_batch(int64_t sequences, int64_t length, int64_t vocab, int64_t replica) {
  data::TokenBatch batch;
  batch.resize(sequences, length);
  const PhiloxKey key = philox_key(9, "scored");
  for (size_t r = 0; r < batch.ids.size(); ++r) {
    const uint64_t at = static_cast<uint64_t>(replica * sequences * length) + r;
    batch.ids[r] = static_cast<int32_t>(philox_at(key, 3 * at) % static_cast<uint64_t>(vocab));
    batch.targets[r] = static_cast<int32_t>(philox_at(key, 3 * at + 1) % static_cast<uint64_t>(vocab));
    batch.weights[r] = static_cast<float>(philox_at(key, 3 * at + 2) % 3) / 2;
  }
  return batch;
}

/// Returns the reference model's loss of each row.
std::vector<double> row_losses(const config::Config& c, const Tensors& weights, const data::TokenBatch& batch) {
  const config::Model& m = c.model;
  const bool llama = m.arch == config::Arch::llama;
  const reference::ModelSpec spec{.family = llama ? reference::Family::llama : reference::Family::gpt2,
                                  .layers = m.n_layer,
                                  .heads = m.n_head,
                                  .kv_heads = m.n_kv_head,
                                  .hidden = m.d_model,
                                  .ff = m.d_ff,
                                  .seq_len = m.seq_len,
                                  .vocab = kTinyVocab,
                                  .tied = m.tie_embeddings.value(),
                                  .bias = m.bias.value(),
                                  .norm_eps = m.norm_eps,
                                  .rope_theta = m.rope_theta};
  const reference::Batch rows{
      .sequences = batch.sequences, .length = batch.seq_len, .ids = batch.ids, .targets = batch.targets};
  return reference::Model<double>(spec, weights).row_losses(rows);
}

/// Replaces the targets of the first half of the rows by the most likely tokens. Returns whether each sequence's
/// counted targets all are the most likely ones.
std::vector<bool> make_greedy(const config::Config& c, const Tensors& weights, data::TokenBatch& batch) {
  data::TokenBatch trial = batch;
  std::vector<double> least(batch.ids.size(), INFINITY);
  std::vector<int32_t> likeliest(batch.ids.size());
  for (int32_t token = 0; token < kTinyVocab; ++token) {
    std::ranges::fill(trial.targets, token);
    const std::vector<double> losses = row_losses(c, weights, trial);
    for (size_t r = 0; r < losses.size(); ++r)
      if (losses[r] < least[r]) least[r] = losses[r], likeliest[r] = token;
  }
  std::copy_n(likeliest.begin(), likeliest.size() / 2, batch.targets.begin());
  std::vector<bool> greedy(static_cast<size_t>(batch.sequences), true);
  for (size_t r = 0; r < likeliest.size(); ++r)
    if (batch.weights[r] > 0 && batch.targets[r] != likeliest[r])
      greedy[r / static_cast<size_t>(batch.seq_len)] = false;
  return greedy;
}

TEST(Scorer, AgreesWithTheReferenceOnEachSequence) {
  for (const auto arch : {config::Arch::gpt2, config::Arch::llama}) {
    for (const int64_t longest : {1, 5, 7, 11, 40}) {
      config::Config c = tiny_config(arch);
      c.model.seq_len = 20;
      Tiny run(c, DType::f64, 2);
      run.step(1);
      Tensors weights;
      for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), false))
        collect(weights, slice);
      train::Scorer scorer(run.trainer, {{longest}});
      const auto [sequences, length] = scorer.shape_for(longest);
      EXPECT_EQ(length, longest <= 5 ? 5 : longest <= 10 ? 10 : 20);
      EXPECT_EQ(sequences * length, 40);
      data::TokenBatch batch = random_batch(sequences, length, kTinyVocab, 0);
      const std::vector<bool> greedy = make_greedy(c, weights, batch);
      const auto scores = scorer.scores(batch);
      std::vector<double> expected(static_cast<size_t>(sequences));
      const std::vector<double> losses = row_losses(c, weights, batch);
      for (size_t r = 0; r < losses.size(); ++r)
        expected[r / static_cast<size_t>(length)] += static_cast<double>(batch.weights[r]) * losses[r];
      ASSERT_EQ(scores.losses.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(scores.losses[i], expected[i], 1e-12 * expected[i]);
      EXPECT_EQ(scores.greedy, greedy);
      EXPECT_TRUE(greedy.front() && !greedy.back());
    }
  }
}

/// Returns the losses of 2 batches, and the most likely tokens after the sequences of the first, from one rank
/// that takes one after the other, or from the ranks of a layout. `longest`: as of train::Scorer.
std::vector<double> losses(const config::Config& c, int64_t vocab, int64_t longest) {
  std::vector<double> found;
  std::mutex mutex;
  const auto ranks = static_cast<int>(config::ranks_of_replica(c) * std::max<int64_t>(c.parallel.data, 1));
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    device::CpuDevice device(1);
    train::ModelRunner runner(device, world, c, vocab, DType::f64);
    runner.plan();
    runner.store().initialize(static_cast<uint64_t>(c.run.seed));
    train::Scorer scorer(runner, {{longest}});
    const auto [sequences, length] = scorer.shape_for(longest);
    std::vector<double> mine;
    std::vector<int32_t> greedy;
    for (int64_t first = 0; first < 2; first += runner.replicas()) {
      const auto batch = random_batch(sequences, length, vocab, first + runner.replica());
      for (const double loss : scorer.scores(batch).losses) mine.push_back(loss);
    }
    EXPECT_EQ(mine.size(), static_cast<size_t>(2 * sequences));
    // One token is the most likely end of each sequence.
    auto batch = random_batch(sequences, length, vocab, 0);
    for (int64_t r = 0; r < sequences * length; ++r)
      batch.weights[static_cast<size_t>(r)] = r % length == length - 1 ? 1 : 0;
    greedy.assign(static_cast<size_t>(sequences), -1);
    for (int32_t token = 0; token < vocab && vocab == kTinyVocab; ++token) {
      std::ranges::fill(batch.targets, token);
      const auto scores = scorer.scores(batch);
      for (size_t i = 0; i < greedy.size(); ++i) {
        EXPECT_TRUE(greedy[i] == -1 || !scores.greedy[i]);
        if (scores.greedy[i]) greedy[i] = token;
      }
    }
    mine.insert(mine.end(), greedy.begin(), greedy.end());
    const std::lock_guard lock(mutex);
    if (world.first()) found = mine;
  });
  return found;
}

/// `parts`: into which the scorer divides sequences.
void expect_as_one_rank(config::Config c, int64_t vocab = kTinyVocab, int64_t parts = 1) {
  c.model.dropout = 0;
  const int64_t longest = c.model.seq_len / parts;
  const std::vector<double> single = losses(on_one_rank(c), vocab, longest), shared = losses(c, vocab, longest);
  ASSERT_EQ(single.size(), shared.size());
  for (size_t i = 0; i < single.size(); ++i)
    EXPECT_NEAR(shared[i], single[i], 1e-11 * std::abs(single[i])) << "value " << i;
}

TEST(Scorer, FindsTheSameOnEveryLayout) {
  expect_as_one_rank(configure(MegatronLayout{.tensor = 2, .data = 2}));
  expect_as_one_rank(configure(MegatronLayout{.tensor = 3, .data = 1, .sequence_parallel = false, .micro_batch = 3}));
  config::Config square = configure(Square{.q = 2});
  square.train.micro_batch = 4;
  expect_as_one_rank(square);
  config::Config grid = configure(AxonnGrid{.x = 2, .y = 1, .z = 2, .data = 2});
  expect_as_one_rank(grid);
  grid = configure(AxonnGrid{.x = 1, .y = 2, .z = 2, .data = 1});
  grid.train.micro_batch = 6;
  expect_as_one_rank(grid);
  for (const LayoutCase& one : layouts_named({"Shards2Data1Gpt2Shared2Gather", "Shards6Data1LlamaShared3Ring",
                                              "Tensor2Data1SpEach2LlamaShared2Ring", "X1Y2Z4Data1LlamaShared2Gather"}))
    for (const int64_t parts : {1, 2}) {
      SCOPED_TRACE(format("{}, parts: {}", one.name, parts));
      expect_as_one_rank(one.config, kTinyVocab, parts);
    }
  expect_as_one_rank(layouts_named({"Shards4Data2Gpt2Shared4Heads2Gather"}).front().config);
}

// The head of a large vocabulary takes rows in chunks, each with rows of all ranks that share the vocabulary: here two
// chunks of 480 rows, on two ranks and on one.
TEST(Scorer, KnowsTheRowsOfChunks) {
  config::Config c = configure(MegatronLayout{.tensor = 2, .data = 1, .micro_batch = 20});
  c.model.n_layer = 1;
  c.model.d_model = 24;
  expect_as_one_rank(c, 60'000);
}

TEST(Scorer, LeavesTrainingUndisturbed) {
  const config::Config c = tiny_config();
  Tiny run(c, DType::f32, 2), other(c, DType::f32, 2);
  run.step(1);
  other.step(1);
  train::Scorer scorer(run.trainer, {{4, 11}});
  for (const int64_t text : {4, 11, 4}) {
    const auto [sequences, length] = scorer.shape_for(text);
    scorer.scores(random_batch(sequences, length, kTinyVocab, 0));
  }
  run.step(2);
  other.step(2);
  EXPECT_TRUE(run.state() == other.state());
}

}  // namespace
}  // namespace trainer::tests
