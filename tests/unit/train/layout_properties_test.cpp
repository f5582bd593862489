// Properties of layouts on ranks that are threads: losses as means over tokens, replicas, memory, norms, generated
// text, and checkpoints that other layouts load.
#include "config/sharding_spec.h"
#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"

namespace trainer::tests {
namespace {

using config::Config;

class Properties : public testing::TestWithParam<LayoutCase> {};

// Micro-batches, replicas and rows of ranks have unequal numbers of targets that count; documents are separate.
TEST_P(Properties, LossIsAMeanOverAllTargetsThatCountHoweverTheyAreSpread) {
  Config c = GetParam().config;
  c.data.separate_documents = true;
  const TempFolder folder;
  const data::TrainingData chats = packed_chats(folder, c.model.seq_len, kTinyVocab);
  Tiny single(on_one_rank(c), DType::f64, 1);
  const std::vector<double> expected = masked_steps(single, chats);
  EXPECT_NEAR(expected[0], std::log(37.0), 1);  // a mean over few targets, with weights that are not trained
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f64, 1);
    EXPECT_LE(distance(masked_steps(run, chats), expected), 1e-10);
  });
}

TEST(MaskedSteps, DoNotDependOnMicroBatches) {
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama}) {
    Config c = tiny_config(arch);
    c.model.dropout = 0;
    c.data.separate_documents = true;
    const TempFolder folder;
    const data::TrainingData chats = packed_chats(folder, c.model.seq_len, kTinyVocab);
    std::vector<double> expected;
    for (const int64_t micro_batch : {4, 2, 1}) {
      c.train.micro_batch = micro_batch;
      Tiny run(c, DType::f64, 1);
      const std::vector<double> found = masked_steps(run, chats);
      if (expected.empty()) expected = found;
      EXPECT_LE(distance(found, expected), 1e-12) << micro_batch;
    }
  }
}

TEST_P(Properties, ReplicasStayEqualAndAreCompared) {
  if (GetParam().name.starts_with("CrossedLlama"))
    GTEST_SKIP() << "every rank has its own columns, so there are no replicas";
  expect_replicas_compared(GetParam().config, 10);
}
TEST_P(Properties, MemoryIsPredictedForEveryRank) {
  const Config& c = GetParam().config;
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    device::DryDevice dry(1);
    const auto planned = comm::dry_world(world.size(), world.rank());
    train::Trainer plan(dry, *planned, c, kTinyVocab, DType::f32);
    plan.plan();
    Tiny run(&world, c, DType::f32, 1);
    for (int64_t n = 1; n <= 2; ++n) run.step(n);
    EXPECT_EQ(run.trainer.memory(), plan.memory()) << "rank " << world.rank();
  });
}
TEST_P(Properties, NormCountsEveryParameterOnce) { expect_norm_counts_every_parameter_once(GetParam().config); }
TEST_P(Properties, GenerationContinuesAsOneRankDoes) { expect_text_continued_as_on_one_rank(GetParam().config); }
INSTANTIATE_TEST_SUITE_P(Some, Properties,
                         testing::ValuesIn(layouts_named({"Tensor2Data2SpEach1Gpt2",
                                                          "Tensor4Data1SpEach1Llama",
                                                          "Tensor4Data1Each1Llama",
                                                          "Q2Depth1Data1Gpt2AutoRingTile1x1",
                                                          "Q2Depth2Data2Gpt2AutoRingTile1x1",
                                                          "Q3Depth1Data1LlamaPaperGatherTile1x1",
                                                          "Q4Depth1Data1LlamaAutoRingTile2x2",
                                                          "X2Y2Z2Data1Gpt2",
                                                          "X3Y1Z2Data1Gpt2",
                                                          "X2Y3Z1Data2Gpt2",
                                                          "Shards4Data1Llama",
                                                          "Shards4Context4Data1Llama",
                                                          "Shards6Context2Data1Gpt2",
                                                          "CrossedLlama",
                                                          "ContraryLlama",
                                                          "Tensor4Data1SpEach1LlamaWideHeadsYarn",
                                                          "CrossedLlamaWideHeadsYarn",
                                                          "Tensor4Data1SpEach1LlamaQkvBiases",
                                                          "Tensor4Data1SpEach1LlamaQkNorm",
                                                          "CrossedLlamaQkNorm",
                                                          "Tensor4Data1SpEach1LlamaPostNorm",
                                                          "Tensor8Data1Each2LlamaPostNorm",
                                                          "X2Y2Z1Data1LlamaPostNorm",
                                                          "CrossedLlamaMasks",
                                                          "CrossedLlamaZLossSoftcap",
                                                          "Q2Depth1Data1LlamaAutoRingTile1x1Masks",
                                                          "Tensor1Data2SpEach2LlamaExpertsDivided",
                                                          "Shards4Context2Data1LlamaSharedExpertDivided",
                                                          "Shards4Data2Gpt2Shared4Heads2GatherMasks",
                                                          "Tensor2Data1SpEach2LlamaShared2RingMasks",
                                                          "X2Y1Z2Data1Gpt2Shared2Ring",
                                                          "Q2Depth1Data1LlamaAutoGatherTile1x1Shared2Ring",
                                                          "SharedLlamaGather"})),
                         name_of_case);

TEST(LayoutLoss, OfARanksOwnRowsIsThatOfOneRank) {
  for (const LayoutCase& one : layouts_named({"Tensor4Data1SpEach1Llama", "Q2Depth1Data1Gpt2AutoRingTile1x1",
                                              "X2Y2Z1Data1Llama", "Shards4Data1LlamaShared4Ring"})) {
    const auto masked = [&](Tiny& run) {
      data::TokenBatch batch;
      run.batches(0, one.config.train.micro_batch, batch);
      for (size_t r = 0; r < batch.weights.size(); ++r) batch.weights[r] = r % 5 == 1 || r > 40 ? 0 : 1;
      double sum = run.trainer.loss_sum(batch);
      run.trainer.scalars().sum_over_rows({&sum, 1});
      return sum;
    };
    Tiny single(on_one_rank(one.config), DType::f64, 1);
    const double expected = masked(single);
    comm::run_on_threads(ranks_of(one.config), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, one.config, DType::f64, 1);
      EXPECT_NEAR(masked(run), expected, 1e-12 * expected) << one;
    });
  }
}

TEST(LayoutLoss, DoesNotDependOnThePaddingOfTheVocabulary) {
  Config c = configure(Square{2});
  const Result usual = train(c, DType::f64, 3);
  c.model.vocab_multiple = 64;
  const Result wider = train(c, DType::f64, 3);
  EXPECT_TRUE(wider.start == usual.start) << "initial weights";
  for (size_t n = 0; n < usual.losses.size(); ++n) EXPECT_NEAR(wider.losses[n], usual.losses[n], 1e-12);
}

/// Returns the same sharding with the axis "data" innermost.
sharding::ModelSharding with_data_last(sharding::ModelSharding s) {
  const auto shift = [](auto&... sets) { ((sets >>= 1), ...); };
  for (sharding::Layer& layer : s.layers) {
    for (sharding::Spread* at : {&layer.stream, &layer.attention, &layer.mlp}) shift(at->rows, at->cols);
    for (auto& [site, l] : layer.linears) shift(l.rows, l.cols, l.contraction, l.flat);
  }
  shift(s.head.rows, s.head.cols, s.table.vocab, s.table.width, s.table.flat);
  for (sharding::Group& group : s.groups) shift(group.axes);
  std::ranges::rotate(s.axes, s.axes.begin() + 1);
  return s;
}

TEST(DataAxis, MayComeAfterAxesThatDoNotSplitRows) {
  for (const LayoutCase& one : layouts_named({"Tensor4Data2Each1Gpt2", "X2Y3Z1Data2Gpt2"}))
    for (const int64_t zero_stage : {0, 1}) {
      Config c = one.config;
      c.parallel.zero_stage = zero_stage;
      const Result usual = train(c, DType::f64, 2),
                   last = train(c, DType::f64, 2, {.sharding = with_data_last(config::sharding_of(c))});
      EXPECT_TRUE(last.start == usual.start) << one;
      expect_same_gradients(last.gradients, usual.gradients, 1e-13);
      EXPECT_LE(distance(last.losses, usual.losses), 1e-13) << one;
      EXPECT_EQ(last.measured, usual.measured) << one;
      EXPECT_EQ(last.predicted, usual.predicted) << one;
    }
}

TEST(LayoutCheckpoints, AreTheSameTensorsInAnyLayout) {
  Config base = configure(Square{2});
  base.model.seq_len = 24;  // up to four ranks share a sequence
  std::vector<Config> chain;
  const auto add = [&](Config c) {
    c.model = base.model;
    c.train = base.train;
    c.train.micro_batch = 8;
    c.train.global_batch = 16;
    chain.push_back(std::move(c));
  };
  for (const char* name :
       {"Q2Depth1Data1Gpt2AutoRingTile1x1", "Tensor2Data1SpEach2Gpt2", "X2Y2Z2Data1Gpt2", "Tensor1Data2SpEach2Gpt2",
        "Q2Depth1Data1Gpt2AutoGatherTile1x1", "MixedGpt2", "X1Y2Z2Data2Llama", "Tensor8Data2Each1Gpt2Kv2",
        "Q2Depth2Data2Gpt2AutoRingTile1x1", "RingGpt2", "Shards4Data1Llama", "Shards4Context4Data1Gpt2",
        "X2Y2Z2Data1Gpt2xyzd", "AxonnWholeColumnsGpt2", "Q2Depth1Data1Gpt2AutoRingTile2x1", "CrossedGpt2",
        "Q4Depth1Data1Gpt2AutoRingTile2x2", "Tensor2Data1Each2Gpt2Shared2Ring", "Shards4Data2Gpt2Shared4Heads2Gather"})
    add(layouts_named({name}).front().config);
  add(on_one_rank(base));
  expect_same_tensors_in(chain);
}

TEST(LayoutCheckpoints, OfExpertsAreTheSameTensorsInAnyLayout) {
  const std::vector<LayoutCase> layouts =
      layouts_named({"Shards4Context2Data1LlamaSharedExpertDivided", "Shards4Context2Data1LlamaSharedExpert",
                     "Tensor2Data1SpEach2LlamaSharedExpert", "X2Y1Z2Data2LlamaSharedExpert",
                     "Q2Depth1Data1LlamaAutoGatherTile1x1SharedExpert", "MixedLlamaSharedExpert"});
  std::vector<Config> chain;
  for (const LayoutCase& one : layouts) {
    chain.push_back(one.config);
    chain.back().model = layouts.back().config.model;
    chain.back().train.micro_batch = 4;
    chain.back().train.global_batch = 8;
  }
  chain.push_back(on_one_rank(chain.back()));
  expect_same_tensors_in(chain);
}

// unit/config/layouts_test.cpp compares the shardings of named strategies with those of their tables. There the depth
// of a 2.5D mesh becomes replicas, with the same results and the same number of bytes.
TEST(LayoutTables, OfADeepMeshTrainTheSame) {
  const Config by_name = layouts_named({"Q2Depth2Data1Gpt2AutoRingTile1x1"}).front().config;
  Config by_tables = by_name;
  config::set_tables(by_tables, config::sharding_of(by_name));
  const Result a = train(by_name, DType::f64, 2), b = train(by_tables, DType::f64, 2);
  expect_same_bits(a, b);
  const auto bytes = [](const Result& result) {
    int64_t sum = 0;
    for (const auto& [axis, operations] : result.measured)
      for (const auto& [operation, sent] : operations) sum += sent;
    return sum;
  };
  EXPECT_EQ(bytes(a), bytes(b));
}

}  // namespace
}  // namespace trainer::tests
