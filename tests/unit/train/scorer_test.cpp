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

/// Returns the reference model's loss of each sequence.
std::vector<double> expected(const config::Config& c, const Tensors& weights, const data::TokenBatch& batch) {
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
  const std::vector<double> losses = reference::Model<double>(spec, weights).row_losses(rows);
  std::vector<double> sums(static_cast<size_t>(batch.sequences));
  for (size_t r = 0; r < losses.size(); ++r)
    sums[r / static_cast<size_t>(batch.seq_len)] += static_cast<double>(batch.weights[r]) * losses[r];
  return sums;
}

TEST(Scorer, AgreesWithTheReferenceOnEachSequence) {
  for (const auto arch : {config::Arch::gpt2, config::Arch::llama}) {
    for (const int64_t longest : {1, 5, 11, 40}) {
      config::Config c = tiny_config(arch);
      c.model.seq_len = 20;
      Tiny run(c, DType::f64, 2);
      run.step(1);
      Tensors weights;
      for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), false))
        collect(weights, slice);
      train::Scorer scorer(run.trainer, longest);
      EXPECT_EQ(scorer.length(), longest <= 5 ? 5 : 20);
      EXPECT_EQ(scorer.sequences() * scorer.length(), 40);
      const data::TokenBatch batch = random_batch(scorer.sequences(), scorer.length(), kTinyVocab, 0);
      const std::vector<double> sums = scorer.losses(batch), reference = expected(c, weights, batch);
      ASSERT_EQ(sums.size(), reference.size());
      for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], reference[i], 1e-12 * reference[i]);
    }
  }
}

/// Returns the losses of 2 batches, from one rank that takes one after the other, or from the ranks of a layout.
/// `longest`: as of train::Scorer.
std::vector<double> losses(const config::Config& c, int64_t vocab, int64_t longest) {
  std::vector<double> found;
  std::mutex mutex;
  const auto ranks = static_cast<int>(config::ranks_of_replica(c) * std::max<int64_t>(c.parallel.data, 1));
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    device::CpuDevice device(1);
    train::ModelRunner runner(device, world, c, vocab, DType::f64);
    runner.plan();
    runner.store().initialize(static_cast<uint64_t>(c.run.seed));
    train::Scorer scorer(runner, longest);
    std::vector<double> mine;
    for (int64_t first = 0; first < 2; first += runner.replicas()) {
      const auto batch = random_batch(scorer.sequences(), scorer.length(), vocab, first + runner.replica());
      for (const double loss : scorer.losses(batch)) mine.push_back(loss);
    }
    const std::lock_guard lock(mutex);
    if (world.first()) found = mine;
    EXPECT_EQ(mine.size(), static_cast<size_t>(2 * scorer.sequences()));
  });
  return found;
}

/// `parts`: into which the scorer divides sequences.
void expect_as_one_rank(config::Config c, int64_t vocab = kTinyVocab, int64_t parts = 1) {
  c.model.dropout = 0;
  const int64_t longest = c.model.seq_len / parts;
  const std::vector<double> single = losses(on_one_rank(c), vocab, longest), shared = losses(c, vocab, longest);
  ASSERT_EQ(single.size(), shared.size());
  for (size_t i = 0; i < single.size(); ++i) EXPECT_NEAR(shared[i], single[i], 1e-11 * single[i]) << "sequence " << i;
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
  train::Scorer scorer(run.trainer, 4);
  scorer.losses(random_batch(scorer.sequences(), scorer.length(), kTinyVocab, 0));
  run.step(2);
  other.step(2);
  EXPECT_TRUE(run.state() == other.state());
}

}  // namespace
}  // namespace trainer::tests
