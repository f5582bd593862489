// Every layout of one list on ranks that are threads, compared with one rank, with itself under other schedules, and
// with the predicted bytes. layout_properties_test.cpp tests further properties of each.
#include <functional>

#include "config/text.h"
#include "rigs/layout_cases.h"
#include "rigs/layouts.h"
#include "rigs/slow.h"

namespace trainer::tests {
namespace {

using config::Config;
using config::Recompute;

/// Returns the results of one rank, which all layouts of one model and batch share.
const Result& one_rank(const Config& c, DType compute, int64_t steps) {
  static std::map<std::string, Result> results;
  const Config one = on_one_rank(c);
  const std::string key = format("{} {} {} {}", config::to_toml(one), c.train.micro_batch, name_of(compute), steps);
  const auto found = results.find(key);
  return found != results.end() ? found->second : results.emplace(key, train(one, compute, steps)).first->second;
}

class Layouts : public testing::TestWithParam<LayoutCase> {};

TEST_P(Layouts, FollowOneRankInDoublePrecisionAndSendThePredictedBytes) {
  const auto& [name, c, steps] = GetParam();
  const Result many = train(c, DType::f64, steps);
  const Result& one = one_rank(c, DType::f64, steps);
  EXPECT_TRUE(many.start == one.start) << "initial weights";
  expect_same_run(many, one);
  expect_predicted_bytes(many, steps);
}
INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(layout_cases()), name_of_case);

TEST(Stages, ComposeWithEveryLayout) {
  using namespace sharding;
  const Stages two{.count = 2, .layers = {1, 1}}, late{2, 1, PipelineSchedule::zb_h1, {1, 1}};
  for (const LayoutCase& one : layout_cases()) {
    SCOPED_TRACE(one.name);
    const ModelSharding inner = config::sharding_of(one.config), staged = add_stages(inner, two);
    EXPECT_EQ(staged.axes.front(), (Axis{"stage", 2}));
    EXPECT_EQ(staged.ranks_of_stage(), inner.ranks_of_replica());
    EXPECT_EQ(staged.ranks_of_replica(), 2 * inner.ranks_of_replica());
    EXPECT_EQ(staged.depth(), inner.depth());
    EXPECT_EQ(inside_stage(staged), inner);
    EXPECT_EQ(add_stages(inner, {}), inner);
    // Rules, on the case and on an extent that no layout of several ranks can split.
    Extents extents = config::extents_of(one.config);
    EXPECT_FALSE(first_violation(staged, extents));
    extents.d_ff = extents.d_model = extents.seq_len = 61;
    const auto first = first_violation(inner, extents), of_staged = first_violation(staged, extents);
    ASSERT_EQ(first.has_value(), of_staged.has_value());
    if (first) {
      EXPECT_EQ(first->text(inner) + first->remedy(inner), of_staged->text(staged) + of_staged->remedy(staged));
    }
    // Canonical forms, and the axes of a mesh.
    EXPECT_EQ(inside_stage(anonymous(staged)), anonymous(inner));
    EXPECT_NE(anonymous(staged), anonymous(add_stages(inner, late)));
    EXPECT_EQ(on_mesh(staged, extents.n_kv_head), add_stages(on_mesh(inner, extents.n_kv_head), two));
    // Sharding specs describe one stage.
    Config tables = one.config, by_inner = one.config;
    set_tables(tables, staged);
    set_tables(by_inner, inner);
    EXPECT_EQ(config::to_toml(tables), config::to_toml(by_inner));
  }
  EXPECT_EQ(text_of(two), "2 stages x 1 1f1b 1,1");
  EXPECT_EQ(text_of(late), "2 stages x 1 zb-h1 1,1");
  EXPECT_EQ(text_of(Stages{}), "");
}

const std::vector<LayoutCase>& scheduled_layouts() {
  static const std::vector<LayoutCase> all = layouts_named({"Tensor2Data1Each2Gpt2",
                                                            "Tensor2Data2SpEach1Gpt2",
                                                            "Tensor4Data1SpEach1Llama",
                                                            "Tensor8Data2Each1Gpt2Kv2",
                                                            "Q2Depth1Data1Gpt2AutoRingTile1x1",
                                                            "Q2Depth1Data1Gpt2AutoGatherTile1x1",
                                                            "Q2Depth1Data2LlamaPaperRingTile1x1",
                                                            "Q2Depth2Data1Gpt2AutoRingTile1x1",
                                                            "X2Y2Z2Data1Gpt2",
                                                            "X2Y2Z2Data1Gpt2VocabXY",
                                                            "X1Y2Z2Data2Llama",
                                                            "X1Y1Z4Data1Gpt2",
                                                            "X3Y2Z1Data1Gpt2",
                                                            "Shards3Data2Gpt2",
                                                            "Shards4Context4Data1Llama",
                                                            "MixedGpt2",
                                                            "RingAfterGatherLlama",
                                                            "CrossedGpt2",
                                                            "Tensor4Data1SpEach1LlamaQkNorm",
                                                            "Q2Depth1Data1LlamaAutoRingTile1x1QkNorm",
                                                            "X1Y2Z2Data2LlamaQkNorm",
                                                            "X1Y2Z2Data2LlamaMasks",
                                                            "Tensor4Data1SpEach1LlamaPostNorm",
                                                            "Q2Depth1Data1LlamaAutoRingTile1x1PostNorm",
                                                            "X1Y2Z2Data2LlamaPostNorm",
                                                            "CrossedLlamaPostNorm",
                                                            "Tensor2Data2Each2LlamaExperts",
                                                            "Shards4Context2Data1LlamaSharedExpert",
                                                            "Tensor1Data2SpEach2LlamaExpertsDivided",
                                                            "Shards4Context2Data1LlamaSharedExpertDivided",
                                                            "Shards4Data2Gpt2Shared4Heads2RingMasks",
                                                            "Shards6Data1LlamaShared3Ring",
                                                            "Tensor2Data1SpEach2LlamaShared2Gather",
                                                            "Tensor2Data1SpEach2LlamaShared2RingMasks",
                                                            "X1Y2Z4Data1LlamaShared2Ring",
                                                            "Q2Depth1Data1LlamaAutoGatherTile1x1Shared2Gather",
                                                            "Shards4Data1LlamaShared2RingSharedExpertDivided"});
  return all;
}

class Schedules : public testing::TestWithParam<LayoutCase> {};

// A type for each layout, in turn; the slow test slow_Schedules takes all types.
TEST_P(Schedules, ChangeNoBit) {
  constexpr int kSteps = 2;
  std::vector<DType> types = {DType::f64, DType::f32, DType::bf16};
  const auto at = std::ranges::find(scheduled_layouts(), GetParam().name, &LayoutCase::name);
  if (!slow()) types = {types[static_cast<size_t>(at - scheduled_layouts().begin()) % 3]};
  for (const DType compute : types) {
    SCOPED_TRACE(name_of(compute));
    Config c = GetParam().config;
    // One to three micro-batches: a first, one between, and a last.
    if (compute == DType::f32) c.train.global_batch = 3 * c.train.micro_batch * std::max<int64_t>(1, c.parallel.data);
    const Result usual = train(c, compute, kSteps);
    const auto same = [&](const char* what, const std::function<void(Config&)>& change, const HowToRun& how = {}) {
      SCOPED_TRACE(what);
      Config other = c;
      change(other);
      const Result result = train(other, compute, kSteps, how);
      expect_same_bits(result, usual);
      expect_predicted_bytes(result, kSteps);
    };
    same("no overlap", [](Config& o) { o.debug.overlap = false; });
    same("late messages", [](Config&) {}, {.threads = 2, .delay = 0.001});
    same("late messages and recomputation", [](Config& o) { o.train.recompute = Recompute::full; }, {.delay = 0.001});
    same("selective recomputation", [](Config& o) { o.train.recompute = Recompute::selective; });
    same("full recomputation of the first layer", [](Config& o) { o.train.recompute_layers = 1; });
    same("split optimizer state", [](Config& o) { o.parallel.zero_stage = 1; });
    if (compute != DType::f64 && c.parallel.data > 1) {
      SCOPED_TRACE("moments in bf16");
      Config small = c, split = c;
      small.optim.moments = split.optim.moments = config::Moments::bf16;
      split.parallel.zero_stage = 1;
      expect_same_bits(train(split, compute, kSteps), train(small, compute, kSteps));
    }
    if (config::sharding_of(c).table.flat == 0) continue;
    same("kept weights of a layer", [](Config& o) { o.parallel.cache_layers = 1; });
    same("kept weights and recomputation", [](Config& o) {
      o.parallel.cache_layers = 2;
      o.train.recompute = Recompute::full;
    });
    for (bool config::Parallel::*only : {&config::Parallel::overlap_all_reduce, &config::Parallel::overlap_all_gather,
                                         &config::Parallel::overlap_reduce_scatter})
      same("one overlap", [&](Config& o) {
        o.parallel.overlap_all_reduce = o.parallel.overlap_all_gather = o.parallel.overlap_reduce_scatter = false;
        o.parallel.*only = true;
      });
  }
}
INSTANTIATE_TEST_SUITE_P(Some, Schedules, testing::ValuesIn(scheduled_layouts()), name_of_case);

class Numbers : public testing::TestWithParam<LayoutCase> {};

TEST_P(Numbers, FollowOneRankInSinglePrecisionAndAreNoWorseInBf16) {
  Config c = GetParam().config;
  c.model.init_std = 0.02;
  const Result& one = one_rank(c, DType::f32, 50);
  const Result many = train(c, DType::f32, 50);
  expect_same_gradients(many.gradients, one.gradients, 1e-5);
  EXPECT_NEAR(many.losses[9], one.losses[9], 1e-6 * one.losses[9]);
  EXPECT_NEAR(many.losses[49], one.losses[49], 1e-5 * one.losses[49]);

  const Result &exact = one_rank(c, DType::f64, 1), &rough = one_rank(c, DType::bf16, 10);
  const Result rough_many = train(c, DType::bf16, 10);
  for (const auto& [name, values] : exact.gradients) {
    if (is_key_bias(name)) continue;
    EXPECT_LE(relative_error(rough_many.gradients.at(name), values),
              1.5 * relative_error(rough.gradients.at(name), values))
        << name;
  }
  EXPECT_NEAR(rough_many.losses[9], rough.losses[9], 2e-3 * rough.losses[9]);
}
INSTANTIATE_TEST_SUITE_P(
    Some, Numbers,
    testing::ValuesIn(layouts_named({"Tensor2Data1SpEach2Gpt2", "Tensor4Data1Each1Llama",
                                     "Q2Depth1Data1Gpt2AutoRingTile1x1", "Q2Depth1Data1Gpt2AutoGatherTile1x1",
                                     "Q3Depth1Data1LlamaPaperGatherTile1x1", "Q2Depth2Data1LlamaAutoGatherTile1x1",
                                     "X2Y2Z1Data1Llama", "X1Y4Z1Data1Gpt2", "X2Y2Z2Data1Gpt2"})),
    name_of_case);

TEST(LayoutNumbers, WeightGradientsMayBeSummedInBf16) {
  Config c = configure(AxonnGrid{1, 2, 4, 1});
  c.model.init_std = 0.02;
  const Result &exact = one_rank(c, DType::f64, 1), usual = train(c, DType::bf16, 10);
  c.parallel.rs_dtype = DType::bf16;
  const Result rounded = train(c, DType::bf16, 10);
  EXPECT_EQ(rounded.measured.at("z").at("reduce_scatter") * 2, usual.measured.at("z").at("reduce_scatter"));
  EXPECT_EQ(rounded.measured.at("z").at("all_gather"), usual.measured.at("z").at("all_gather"));
  for (const auto& [name, values] : exact.gradients)
    if (!is_key_bias(name)) {
      EXPECT_LE(relative_error(rounded.gradients.at(name), values), 0.02) << name;
    }
  EXPECT_FALSE(rounded.state == usual.state);
  EXPECT_NEAR(rounded.losses[9], usual.losses[9], 2e-3 * usual.losses[9]);
  Config other = c;  // nothing to round in fp32
  other.parallel.rs_dtype = DType::f32;
  expect_same_bits(train(c, DType::f32, 2), train(other, DType::f32, 2));
}

// Rounding every partial sum to bf16 adds errors that grow with the number of ranks.
TEST(LayoutNumbers, PartialSumsInFp32AreAsExactAsOneRank) {
  const auto errors = [](const Result& result, const Result& exact) {
    double sum = 0;
    for (const auto& [name, values] : exact.gradients)
      if (!is_key_bias(name)) sum += std::log(relative_error(result.gradients.at(name), values));
    return std::exp(sum / static_cast<double>(exact.gradients.size()));  // up to a common factor
  };
  for (const LayoutCase& one :
       layouts_named({"Tensor8Data1SpEach2Llama", "X1Y4Z1Data1Gpt2", "Q4Depth1Data1LlamaAutoRingTile2x2"})) {
    SCOPED_TRACE(one.name);
    Config c = one.config;
    c.model.init_std = 0.02;
    const Result &exact = one_rank(c, DType::f64, 1), &rough = one_rank(c, DType::bf16, 10);
    const Result usual = train(c, DType::bf16, 10);
    c.parallel.sum_dtype = DType::f32;
    const Result wide = train(c, DType::bf16, 10);
    expect_predicted_bytes(wide, 10);
    // Optimus-2D adds few partial sums in these types: the difference is within the noise of a tiny model.
    if (c.parallel.strategy != config::StrategyName::optimus_2d) {
      EXPECT_LT(errors(wide, exact), errors(usual, exact));
    }
    EXPECT_LT(errors(wide, exact), 1.1 * errors(rough, exact));
    EXPECT_NEAR(wide.losses[9], rough.losses[9], 2e-3 * rough.losses[9]);
    Config other = c;  // nothing to round in fp32
    other.parallel.sum_dtype = DType::bf16;
    expect_same_bits(train(c, DType::f32, 2), train(other, DType::f32, 2));
  }
}

}  // namespace
}  // namespace trainer::tests
