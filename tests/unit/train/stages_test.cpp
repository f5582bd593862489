// Pipeline stages, compared with one stage bit for bit.
#include "config/stages.h"
#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"
#include "rigs/muon.h"
#include "rigs/offload.h"
#include "rigs/slow.h"
#include "train/generate.h"

namespace trainer::tests {
namespace {

using config::Config;
using Layers = std::vector<int64_t>;

/// Returns `c` with these layers per chunk, and a batch of `micro_batches` micro-batches.
Config in_stages(Config c, int64_t stages, Layers layers, int64_t micro_batches) {
  c.parallel.stages = stages;
  c.parallel.chunks = std::ssize(layers) / stages;
  c.parallel.stage_layers = std::move(layers);
  c.train.global_batch = micro_batches * c.train.micro_batch * std::max<int64_t>(1, c.parallel.data);
  return c;
}
Config zb_h1(Config c) {
  c.parallel.pipeline_schedule = sharding::PipelineSchedule::zb_h1;
  return c;
}
Config in_one_stage(Config c) {
  c.parallel.stages = c.parallel.chunks = 1;
  c.parallel.pipeline_schedule = {};
  c.parallel.stage_layers.clear();
  return c;
}

void expect_bytes_of_every_rank(const Result& result, int64_t steps) {
  for (size_t rank = 0; rank < result.bytes.size(); ++rank) {
    auto [measured, predicted] = result.bytes[rank];
    for (auto& [axis, operations] : predicted)
      for (auto& [operation, bytes] : operations) bytes *= steps;
    EXPECT_EQ(measured, predicted) << "rank " << rank;
  }
}

/// Expects five steps of configurations that differ in their stages to have the bits of one stage.
void expect_bits_of_one_stage(const std::vector<Config>& configs, DType compute = DType::f32,
                              const HowToRun& how = {}) {
  constexpr int64_t kSteps = 5;
  const Result one = train(in_one_stage(configs.front()), compute, kSteps);
  for (const Config& c : configs) {
    SCOPED_TRACE(config::layout_text(c));
    const Result many = train(c, compute, kSteps, how);
    EXPECT_TRUE(many.start == one.start) << "initial weights";
    EXPECT_TRUE(many.gradients == one.gradients);
    expect_same_bits(many, one);
    expect_bytes_of_every_rank(many, kSteps);
  }
}
std::vector<Config> with_each_schedule(const Config& c) { return {c, zb_h1(c)}; }
/// Returns every second of several cases `c` with one of the schedules; in the slow tests, all of them with both.
std::vector<Config> with_schedules_in_turn(const Config& c, size_t number) {
  if (slow()) return with_each_schedule(c);
  return {number % 2 == 0 ? c : zb_h1(c)};
}

Config untied(Config c) {
  c.model.tie_embeddings = false;
  return c;
}

TEST(Stages, HaveTheBitsOfOneStageWithEveryNumberOfMicroBatches) {
  const Config c = untied(configure(MegatronLayout{2, 1, true}));
  for (const int64_t micro_batches : {1, 2, 3, 5, 9}) {
    SCOPED_TRACE(micro_batches);
    expect_bits_of_one_stage(with_each_schedule(in_stages(c, 2, {1, 1}, micro_batches)));
  }
}

TEST(Stages, MayHaveNoLayersAtTheEnds) {
  Config c = untied(tiny_config());
  for (const Layers& layers : {Layers{1, 1}, {0, 2}, {2, 0}, {0, 2, 0}, {1, 1, 0}, {0, 1, 1}, {0, 1, 1, 0}}) {
    SCOPED_TRACE(testing::PrintToString(layers));
    expect_bits_of_one_stage(with_each_schedule(in_stages(c, std::ssize(layers), layers, 4)));
  }
  c.model.n_layer = 5;
  expect_bits_of_one_stage(with_each_schedule(in_stages(c, 3, {2, 2, 1}, 5)));
}

TEST(Stages, InterleaveChunks) {
  Config c = untied(configure(MegatronLayout{2, 1, true}));
  expect_bits_of_one_stage({in_stages(c, 2, {0, 1, 1, 0}, 4)});
  c.model.n_layer = 6;
  for (const int64_t micro_batches : {2, 4, 8})
    expect_bits_of_one_stage({in_stages(c, 2, {1, 2, 2, 1}, micro_batches)});
  expect_bits_of_one_stage({in_stages(c, 3, {1, 1, 1, 1, 1, 1}, 6)}, DType::bf16, {.delay = 0.001});
}

// On stages after the first one, the gradients of what out and down return are gathered twice.
TEST(Stages, ComputeWeightGradientsLater) {
  Config c = untied(configure(MegatronLayout{2, 1, true}));
  c.model.n_layer = 4;
  const int64_t micro_batches = 7;
  c = in_stages(c, 4, {1, 1, 1, 1}, micro_batches);
  expect_bits_of_one_stage({zb_h1(c)}, DType::bf16, {.delay = 0.001});
  const auto gathered = [](const Result& result, size_t rank) {
    return result.bytes[rank].first.at("tensor").at("all_gather");
  };
  const Result early = train(c, DType::f32, 1), late = train(zb_h1(c), DType::f32, 1);
  const int64_t of_stream = c.train.micro_batch * c.model.seq_len * c.model.d_model * size_of(DType::f32);
  for (size_t rank = 0; rank < late.bytes.size(); ++rank)
    EXPECT_EQ(gathered(late, rank) - gathered(early, rank), rank < 2 ? 0 : 2 * micro_batches * of_stream) << rank;
}

// Between F and B: x before both branches, q ‖ k ‖ v and gelu's input. Between F and W: the inputs of the four linears;
// between B and W: the gradients of their outputs. In units of rows x d_model; the rest is small.
TEST(Stages, KeepForWeightGradientsWhatLinearsNeed) {
  Config c = untied(configure(MegatronLayout{1, 1}));
  c.model.n_layer = 3;
  c.model.d_ff = 4 * c.model.d_model;
  c = zb_h1(in_stages(c, 3, {1, 1, 1}, 4));
  const int64_t rows = c.train.micro_batch * c.model.seq_len, unit = rows * c.model.d_model * size_of(DType::f32);
  const int64_t statistics = rows * (c.model.n_head + 4) * size_of(DType::f32);  // log-sum-exps; two norms' statistics
  comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    const auto frame = [&](const char* program) { return run.trainer.arena().programs().at(program).frame; };
    if (world.rank() == 0) EXPECT_EQ(frame("F 0"), (Arena::PerPool{16 * unit + statistics, 0, 0}));
    if (world.rank() == 1) EXPECT_EQ(frame("F 1"), (Arena::PerPool{9 * unit + statistics, 7 * unit, 9 * unit}));
    if (world.rank() == 2) EXPECT_EQ(frame("FB 2"), (Arena::PerPool{16 * unit, 0, 0}));
  });
}

// Experts compute weight gradients in B: between B and W only those of the outputs of qkv and out are alive.
TEST(Stages, KeepNothingForWeightGradientsOfExperts) {
  Config c = configure(MegatronLayout{1, 1, false, config::Arch::llama});
  add_experts(c);
  c.model.n_layer = 3;
  c = zb_h1(in_stages(c, 3, {1, 1, 1}, 4));
  const int64_t width = c.model.d_model / c.model.n_head * (c.model.n_head + 2 * c.model.n_kv_head) + c.model.d_model;
  comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    if (world.rank() == 1)
      EXPECT_EQ(run.trainer.arena().programs().at("F 1").frame[2],
                c.train.micro_batch * c.model.seq_len * width * size_of(DType::f32));
  });
}

std::vector<LayoutCase> some_layouts();
class StagesOf : public testing::TestWithParam<LayoutCase> {};

// Two or three stages, in turn; the slow test slow_Stages takes both for every layout.
TEST_P(StagesOf, HaveTheBitsOfOneStage) {
  const Config c = untied(GetParam().config);
  const std::vector<LayoutCase> some = some_layouts();
  const bool first = (std::ranges::find(some, GetParam().name, &LayoutCase::name) - some.begin()) % 2 == 0;
  if (first || slow()) expect_bits_of_one_stage(with_each_schedule(in_stages(c, 2, {1, 1}, 3)));
  if (first && !slow()) return;
  Config other = c;
  other.parallel.zero_stage = 1;
  other.train.recompute = config::Recompute::selective;
  expect_bits_of_one_stage(with_each_schedule(in_stages(other, 3, {1, 1, 0}, 4)), DType::bf16, {.delay = 0.0005});
}
std::vector<LayoutCase> some_layouts() {
  return layouts_named({"Tensor2Data1Each2Gpt2",
                        "Tensor2Data2SpEach1Gpt2",
                        "Tensor4Data1SpEach1Llama",
                        "Tensor8Data2Each1Gpt2Kv2",
                        "Q2Depth1Data1Gpt2AutoRingTile1x1",
                        "Q2Depth1Data2LlamaPaperRingTile1x1",
                        "Q2Depth2Data1Gpt2AutoRingTile1x1",
                        "X2Y2Z2Data1Gpt2",
                        "X2Y2Z2Data1Gpt2VocabXY",
                        "X1Y2Z2Data2Llama",
                        "X1Y1Z4Data1Gpt2",
                        "Shards3Data2Gpt2",
                        "Shards4Context4Data1Llama",
                        "MixedGpt2",
                        "RingAfterGatherLlama",
                        "CrossedGpt2",
                        "Tensor4Data1SpEach1LlamaQkNorm",
                        "X1Y2Z2Data2LlamaMasks",
                        "CrossedLlamaPostNorm",
                        "Tensor2Data2Each2LlamaExperts",
                        "Shards4Context2Data1LlamaSharedExpert",
                        "Tensor2Data1SpEach2LlamaShared2RingMasks",
                        "Shards4Data1LlamaShared4Gather"});
}
std::vector<LayoutCase> other_layouts() {
  std::vector<LayoutCase> others = layout_cases();
  for (const LayoutCase& one : some_layouts())
    std::erase_if(others, [&](const LayoutCase& other) { return other.name == one.name; });
  return others;
}
INSTANTIATE_TEST_SUITE_P(Some, StagesOf, testing::ValuesIn(some_layouts()), name_of_case);
// The slow test slow_Stages runs these.
INSTANTIATE_TEST_SUITE_P(DISABLED_Stages, StagesOf, testing::ValuesIn(other_layouts()), name_of_case);

TEST(Stages, ComposeWithOtherFeatures) {
  const Config c = untied(configure(MegatronLayout{2, 2, true}));
  size_t number = 0;
  const auto same = [&](const char* what, const std::function<void(Config&)>& change) {
    SCOPED_TRACE(what);
    Config other = in_stages(c, 2, {1, 1}, 3);
    change(other);
    expect_bits_of_one_stage(with_schedules_in_turn(other, number++));
  };
  same("z-loss", [](Config& o) { o.train.z_loss = 1e-3; });
  same("separate documents", [](Config& o) { o.data.separate_documents = true; });
  same("full recomputation", [](Config& o) { o.train.recompute = config::Recompute::full; });
  same("a recomputed layer", [](Config& o) { o.train.recompute_layers = 1; });
  same("no dropout", [](Config& o) { o.model.dropout = 0; });
  same("bf16 moments", [](Config& o) { o.optim.moments = config::Moments::bf16; });
  same("no overlap", [](Config& o) { o.debug.overlap = false; });
  for (const int64_t stages : {2, 3})
    same("Muon", [=](Config& o) {
      o = in_stages(with_muon(o), stages, stages == 2 ? Layers{2, 0} : Layers{1, 1, 0}, 3);
    });
  for (const config::Offload& plan : kOffloadPlans) same("offload", [&](Config& o) { o = offloaded(o, plan); });
}

// The head's gradient of the table is summed over all micro-batches before the embedding's is added.
TEST(Stages, ShareATiedTable) {
  constexpr int64_t kSteps = 5;
  Config c = configure(MegatronLayout{2, 2, true});
  c.model.n_layer = 4;
  const Config two = in_stages(c, 2, {2, 2}, 4), three = in_stages(c, 3, {1, 2, 1}, 4);
  const Result one = train(in_one_stage(two), DType::f64, kSteps), of_two = train(two, DType::f64, kSteps);
  EXPECT_TRUE(of_two.start == one.start);
  expect_same_run(of_two, one);
  expect_bytes_of_every_rank(of_two, kSteps);
  const Result of_three = train(three, DType::f64, kSteps, {.delay = 0.001});
  expect_same_bits(of_three, of_two);
  expect_same_bits(train(zb_h1(three), DType::f64, kSteps), of_two);
  expect_bytes_of_every_rank(of_three, kSteps);
  expect_same_bits(train(in_stages(c, 2, {1, 1, 1, 1}, 4), DType::f64, kSteps), of_two);
  Config split = two;
  split.parallel.zero_stage = 1;
  expect_same_bits(train(split, DType::f64, kSteps), of_two);
  expect_same_bits(train(offloaded(split, kOffloadPlans[1]), DType::f64, kSteps), of_two);
  for (const char* name : {"X2Y2Z2Data1Gpt2VocabXY", "Shards3Data2Gpt2", "CrossedGpt2"}) {
    SCOPED_TRACE(name);
    const Config sharded = in_stages(layouts_named({name}).front().config, 2, {1, 1}, 3);
    const Result many = train(sharded, DType::f64, kSteps);
    expect_same_run(many, train(in_one_stage(sharded), DType::f64, kSteps));
    expect_bytes_of_every_rank(many, kSteps);
  }
  expect_replicas_compared(two, 2);
}

TEST(Stages, EvaluateLikeOneStage) {
  for (const bool tied : {false, true})
    for (const Layers& layers : {Layers{}, {1, 1}, {0, 1, 1, 0}}) {
      Config c = configure(MegatronLayout{2, 2, true});
      c.model.tie_embeddings = tied;
      if (!layers.empty()) c = in_stages(c, 2, layers, 4);
      static std::map<bool, double> expected;
      comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
        Tiny run(&world, c, DType::f64, 1);
        std::vector<data::TokenBatch> batches(3);
        std::vector<double> each;
        double sum = 0, copies = 0;
        for (int64_t n = 0; n < 3; ++n) {
          data::TokenBatch& batch = batches[static_cast<size_t>(n)];
          run.batches(n * 8 + run.trainer.replica() * c.train.micro_batch, c.train.micro_batch, batch);
          sum += each.emplace_back(run.trainer.loss_sum(batch));
          copies += run.trainer.scalars().is_first_of_replica();
        }
        const int64_t at_once = run.trainer.batches_at_once();
        EXPECT_EQ(at_once, layers.empty() ? 1 : 4);
        if (at_once > 1) {
          EXPECT_EQ(run.trainer.loss_sums(batches), each);
        }
        double sums[] = {sum, copies};
        run.trainer.scalars().sum_over_rows(sums);
        EXPECT_EQ(sums[1], 3.0 * static_cast<double>(run.trainer.replicas()));
        if (!world.first()) return;
        if (layers.empty()) expected[tied] = sums[0];
        EXPECT_EQ(sums[0], expected.at(tied));
        EXPECT_GT(sums[0], 0);
      });
    }
}

TEST(Stages, GenerateLikeOneStage) {
  std::vector<int32_t> expected;
  for (const Layers& layers : {Layers{}, {1, 1}, {0, 2, 0}, {0, 1, 1, 0}}) {
    Config c = configure(MegatronLayout{2, 1, true});
    if (!layers.empty()) c = in_stages(c, layers.size() == 3 ? 3 : 2, layers, 6);
    comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f64, 1);
      train::Generator generator(run.trainer, 2);
      std::vector<int32_t> tokens;
      int64_t asked = 0;
      generator.run([&]() -> std::optional<train::TokenRequest> {
        if (asked == 3) return std::nullopt;
        const auto first = static_cast<int32_t>(++asked);
        return train::TokenRequest{.prompt = {first, 5, 7},
                                   .tokens = 12,  // beyond the context
                                   .sampling = {.temperature = 1, .seed = 3},
                                   .emit = [&](int32_t id) {
                                     tokens.push_back(id);
                                     return true;
                                   }};
      });
      EXPECT_EQ(tokens.size(), 36u);
      run.step(1);  // frames and links are free
      if (!world.first()) return;
      if (expected.empty()) expected = tokens;
      EXPECT_EQ(tokens, expected);
    });
  }
}

TEST(Stages, LoadCheckpointsOfOtherLayouts) {
  for (const bool tied : {false, true}) {
    Config c = configure(MegatronLayout{2, 2, true});
    c.model.tie_embeddings = tied;
    c.model.n_layer = 4;
    expect_same_tensors_in(std::array{in_stages(c, 2, {2, 2}, 2), in_stages(on_one_rank(c), 1, {4}, 2),
                                      in_stages(c, 3, {0, 3, 1}, 2), in_stages(c, 2, {1, 1, 1, 1}, 2), in_one_stage(c),
                                      in_stages(c, 4, {1, 1, 2, 0}, 2)});
  }
}

TEST(Stages, StopBetweenTwoSteps) {
  const Config c = in_stages(tiny_config(), 2, {1, 1}, 4);
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    static std::atomic<int> calls;
    calls = 0;
    EXPECT_FALSE(run.step(1, 1e-3, [] { return ++calls > 2; }).interrupted);
    EXPECT_TRUE(run.step(2, 1e-3, [] { return true; }).interrupted);
    EXPECT_FALSE(run.step(2).interrupted);
  });
}

TEST(Stages, AreBalancedWithTheHead) {
  Config c = tiny_config();
  c.model = {.n_layer = 12, .n_head = 12, .n_kv_head = 12, .d_model = 768, .d_ff = 3072, .seq_len = 1024};
  const auto split = [&](int64_t stages) {
    c.parallel.stages = stages;
    c.parallel.stage_layers.clear();
    config::choose_stage_layers(c, 50257);
    return c.parallel.stage_layers;
  };
  EXPECT_EQ(split(1), Layers());
  EXPECT_EQ(split(2), (Layers{8, 4}));
  EXPECT_EQ(split(3), (Layers{5, 6, 1}));
  EXPECT_EQ(split(4), (Layers{4, 4, 4, 0}));
}

}  // namespace
}  // namespace trainer::tests
