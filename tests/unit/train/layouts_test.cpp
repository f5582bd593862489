// Every layout of one list on ranks that are threads: against one rank, against itself under other schedules, against
// each other's checkpoints, and in the bytes that were predicted. A strategy is tested by its lines in the list.
#include <functional>

#include "config/tags.h"
#include "config/text.h"
#include "rigs/axonn.h"
#include "rigs/layout_checks.h"
#include "rigs/megatron.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Config;
using config::LayerTags;
using config::Recompute;

struct Case {
  std::string name;
  Config config;
  int64_t steps = 5;
};
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

/// Tables of letters over the axes; two layers.
Case tables(const char* name, Arch arch, std::vector<int64_t> axes, std::vector<LayerTags> layers, const char* head,
            const char* table, int64_t kv_heads = 2) {
  Config c = configure(Layout{.arch = arch, .kv_heads = arch == Arch::llama ? kv_heads : 0});
  if (arch == Arch::llama) c.model.n_kv_head = kv_heads;
  c.parallel.strategy = "autoddl";
  c.parallel.axes = std::move(axes);
  for (LayerTags& tags : layers) tags.layers = layers.size() == 2 ? 1 : 2;
  c.parallel.layer = std::move(layers);
  c.parallel.head = head;
  c.parallel.table = table;
  return {format("{}{}", name, arch == Arch::gpt2 ? "Gpt2" : "Llama"), c};
}

/// FSDP over `shards` ranks, `context` of which share each sequence, in `data` replicas.
Case sharded(int64_t shards, int64_t data, Arch arch, int64_t context = 1) {
  Config c = configure(Grid{1, 1, shards, data, arch});
  c.parallel.strategy = "fsdp";
  c.parallel.grid = {1, 1, 1};
  c.parallel.shards = shards;
  c.parallel.context = context;
  c.model.seq_len = 12;  // rows divide over eight ranks, and parts of a sequence over four
  c.train.micro_batch /= context;
  c.train.global_batch = 4 * c.train.micro_batch * data;
  return {format("Shards{}{}Data{}{}", shards, context > 1 ? format("Context{}", context) : "", data,
                 arch == Arch::gpt2 ? "Gpt2" : "Llama"),
          c};
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  const auto add = [&](const auto& layout, int64_t steps = 5) {
    all.push_back({to_string(layout), configure(layout), steps});
  };
  // Megatron-1D. With one sequence of 24 rows shards lie inside it; with two, three shards of 16 cut one.
  for (const int64_t tensor : {2, 3, 4, 8})
    for (const bool sequence_parallel : {false, true})
      add(Layout{tensor, 1, sequence_parallel, tensor % 4 == 0 ? Arch::llama : Arch::gpt2, tensor == 4 ? 1 : 2},
          tensor == 4 ? 20 : 5);
  add(Layout{1, 2});
  add(Layout{2, 2, true, Arch::gpt2, 1}, 20);
  add(Layout{3, 1, true, Arch::llama});
  add(Layout{4, 2, false, Arch::gpt2, 1});
  add(Layout{4, 2, true, Arch::llama, 1});
  // Shared key/value heads with biases: what some ranks hold and others count lies side by side in one slot.
  add(Layout{4, 1, true, Arch::gpt2, 1, 2});
  add(Layout{8, 2, false, Arch::gpt2, 1, 2});
  // Optimus-2D: squares, in depth and as replicas; tiles that cut the axes, also where ranks share heads.
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    for (const char* panels : {"ring", "gather"}) {
      add(Square{2, 1, 1, arch, "auto", {1, 1}, panels}, arch == Arch::gpt2 ? 20 : 5);
      add(Square{3, 1, 1, arch, "paper", {1, 1}, panels});
    }
    add(Square{2, 1, 2, arch, "paper"});
    add(Square{2, 2, 1, arch, "auto", {1, 1}, arch == Arch::gpt2 ? "ring" : "gather"});
    add(Square{4, 1, 1, arch, "auto", {2, 2}});
  }
  add(Square{2, 2, 2});
  add(Square{1, 3});
  add(Square{1, 2, 2, Arch::llama});
  add(Square{2, 1, 1, Arch::gpt2, "auto", {2, 1}});
  add(Square{4, 1, 1, Arch::llama, "paper", {1, 2}});
  // AxoNN-4D: every grid of 2, 4 and 8 ranks, orders of its axes, odd ones and several of 16.
  for (const int64_t ranks : {2, 4, 8})
    for (int64_t x = 1; x <= ranks; x *= 2)
      for (int64_t y = 1; x * y <= ranks; y *= 2)
        if (const int64_t z = ranks / (x * y); ranks < 8 || x * y * z == 8)
          add(Grid{x, y, z, 1, (x + z) % 3 == 0 ? Arch::llama : Arch::gpt2}, ranks == 4 ? 20 : 5);
  for (const Grid& grid :
       {Grid{3, 1, 2, 1}, Grid{1, 3, 2, 1}, Grid{3, 2, 1, 1}, Grid{2, 3, 1, 2}, Grid{2, 2, 1, 1, Arch::gpt2, "xyzd"},
        Grid{1, 2, 2, 2, Arch::llama}, Grid{2, 2, 2, 1, Arch::gpt2, "xyzd"}, Grid{2, 4, 2, 1},
        Grid{2, 2, 4, 1, Arch::llama}, Grid{4, 2, 1, 2, Arch::llama, "zxyd"}})
    add(grid);
  // FSDP and hybrid sharding.
  all.push_back(sharded(4, 1, Arch::llama));
  all.push_back(sharded(3, 2, Arch::gpt2));
  all.push_back(sharded(4, 1, Arch::gpt2, 4));
  all.push_back(sharded(4, 1, Arch::llama, 4));  // more ranks than key/value heads
  all.push_back(sharded(6, 1, Arch::gpt2, 2));
  // Tables of letters, where neighbouring layers may disagree.
  const LayerTags optimus{"rc", "rc", "rc", "fc", "fc", "fc", "fk"}, megatron{"rr", "cc", "cc", "cc", "kk", "cc", "kk"},
      axonn{"r-c", "rc-", "rc-", "fck", "fkc", "fck", "fkc"};
  LayerTags ring = optimus;
  ring.schedule = "ring";
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    all.push_back(tables("AxonnWholeColumns", arch, {2, 2, 2}, {axonn}, "r-r", "fvf"));
    all.push_back(tables("Mixed", arch, {2, 2}, {megatron, optimus}, "rc", "fv"));
    all.push_back(tables("Ring", arch, {2, 2}, {ring}, "rc", "fv"));
    all.push_back(tables("RingAfterGather", arch, {2, 2}, {optimus, ring}, "rc", "fv"));
    all.push_back(tables("SharedHeads", arch, {4, 2}, {{"r-", "c-", "c-", "c-", "k-", "c-", "k-"}}, "r-", "v-"));
    all.push_back(tables("Crossed", arch, {2, 2},
                         {{"-c", "cr", "c-", "ck", "rf", "kk", "rr"}, {"cc", "cc", "cc", "kr", "ff", "fc", "kc"}}, "rr",
                         "fv"));
  }
  all.push_back(tables("Contrary", Arch::llama, {2, 3},
                       {{"cr", "r-", "rc", "kc", "ck", "fr", "cc"}, {"rc", "-c", "-r", "rk", "kf", "k-", "-k"}}, "r-",
                       "fh", 3));
  // What families add to the block, on layouts of each strategy; ranks share key/value heads in some.
  const auto with = [&](const char* feature, const std::function<void(Config&)>& change) {
    for (const char* base : {"Tensor4Data1SpEach1Llama", "Tensor8Data1Each2Llama", "Q2Depth1Data1LlamaAutoRingTile1x1",
                             "Q3Depth1Data1LlamaPaperGatherTile1x1", "Q4Depth1Data1LlamaAutoRingTile2x2",
                             "X2Y2Z1Data1Llama", "X1Y2Z2Data2Llama", "MixedLlama", "CrossedLlama"}) {
      const auto found = std::ranges::find(all, base, &Case::name);
      if (found == all.end()) throw std::runtime_error(std::string("no case ") + base);
      Case changed = *found;
      changed.name += feature;
      change(changed.config);
      all.push_back(changed);
    }
  };
  with("WideHeadsYarn", [](Config& c) {
    c.model.head_dim = 6;
    c.model.rope_type = config::RopeType::yarn;
    c.model.rope_factor = 4;
    c.model.rope_original = 16;
  });
  with("QkNorm", [](Config& c) { c.model.qk_norm = config::QkNorm::head; });
  with("PostNorm", [](Config& c) {
    c.model.norm_place = config::NormPlace::post;
    c.model.qk_norm = config::QkNorm::full;
  });
  with("QkvBiases", [](Config& c) { c.model.attn_bias = config::AttentionBias::qkv; });
  with("ZLossSoftcap", [](Config& c) {
    c.train.z_loss = 0.01;
    c.model.logit_softcap = 4;
  });
  with("Masks", [](Config& c) {
    c.model.window = 5;
    c.model.window_full_every = 2;
    c.model.nope_every = 2;
    c.data.separate_documents = true;
  });
  return all;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = all_cases();
  return all;
}
/// Returns the cases of these names.
std::vector<Case> named(std::initializer_list<const char*> names) {
  std::vector<Case> some;
  for (const char* name : names) {
    const auto found = std::ranges::find(cases(), name, &Case::name);
    if (found == cases().end()) throw std::runtime_error(std::string("no case ") + name);
    some.push_back(*found);
  }
  return some;
}
std::string name_of_case(const testing::TestParamInfo<Case>& info) { return info.param.name; }

/// Runs of one rank are shared by the layouts of one model and batch.
const Result& one_rank(const Config& c, DType compute, int64_t steps) {
  static std::map<std::string, Result> results;
  const Config one = on_one_rank(c);
  const std::string key = format("{} {} {} {}", config::to_toml(one), c.train.micro_batch, name_of(compute), steps);
  const auto found = results.find(key);
  return found != results.end() ? found->second : results.emplace(key, train(one, compute, steps)).first->second;
}

class Layouts : public testing::TestWithParam<Case> {};

TEST_P(Layouts, FollowOneRankInDoublePrecisionAndSendThePredictedBytes) {
  const auto& [name, c, steps] = GetParam();
  const Result many = train(c, DType::f64, steps);
  const Result& one = one_rank(c, DType::f64, steps);
  EXPECT_TRUE(many.start == one.start) << "initial weights";
  expect_same_run(many, one);
  expect_predicted_bytes(many, steps);
}
INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(cases()), name_of_case);

class Schedules : public testing::TestWithParam<Case> {};

TEST_P(Schedules, ChangeNoBit) {
  constexpr int kSteps = 2;
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
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
    same("split optimizer state", [](Config& o) { o.parallel.zero_stage = 1; });
    if (compute != DType::f64 && c.parallel.data > 1) {
      SCOPED_TRACE("moments in bf16");
      Config small = c, split = c;
      small.optim.moments = split.optim.moments = config::Moments::bf16;
      split.parallel.zero_stage = 1;
      expect_same_bits(train(split, compute, kSteps), train(small, compute, kSteps));
    }
    if (!config::sharding_of(c).gathers_weights()) continue;
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
INSTANTIATE_TEST_SUITE_P(Some, Schedules,
                         testing::ValuesIn(named({"Tensor2Data1Each2Gpt2",
                                                  "Tensor2Data2SpEach1Gpt2",
                                                  "Tensor4Data1SpEach1Llama",
                                                  "Tensor8Data2Each1Gpt2Kv2",
                                                  "Q2Depth1Data1Gpt2AutoRingTile1x1",
                                                  "Q2Depth1Data1Gpt2AutoGatherTile1x1",
                                                  "Q2Depth1Data2LlamaPaperRingTile1x1",
                                                  "Q2Depth2Data1Gpt2AutoRingTile1x1",
                                                  "X2Y2Z2Data1Gpt2",
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
                                                  "CrossedLlamaPostNorm"})),
                         name_of_case);

class Numbers : public testing::TestWithParam<Case> {};

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
    testing::ValuesIn(named({"Tensor2Data1SpEach2Gpt2", "Tensor4Data1Each1Llama", "Q2Depth1Data1Gpt2AutoRingTile1x1",
                             "Q2Depth1Data1Gpt2AutoGatherTile1x1", "Q3Depth1Data1LlamaPaperGatherTile1x1",
                             "Q2Depth2Data1LlamaAutoGatherTile1x1", "X2Y2Z1Data1Llama", "X1Y4Z1Data1Gpt2",
                             "X2Y2Z2Data1Gpt2"})),
    name_of_case);

TEST(LayoutNumbers, WeightGradientsMayBeSummedInBf16) {
  Config c = configure(Grid{1, 2, 4, 1});
  c.model.init_std = 0.02;
  const Result &exact = one_rank(c, DType::f64, 1), usual = train(c, DType::bf16, 10);
  c.parallel.rs_dtype = "bf16";
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
  other.parallel.rs_dtype = "fp32";
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
  for (const Case& one : named({"Tensor8Data1SpEach2Llama", "X1Y4Z1Data1Gpt2", "Q4Depth1Data1LlamaAutoRingTile2x2"})) {
    SCOPED_TRACE(one.name);
    Config c = one.config;
    c.model.init_std = 0.02;
    const Result &exact = one_rank(c, DType::f64, 1), &rough = one_rank(c, DType::bf16, 10);
    const Result usual = train(c, DType::bf16, 10);
    c.parallel.sum_dtype = "fp32";
    const Result wide = train(c, DType::bf16, 10);
    expect_predicted_bytes(wide, 10);
    // The square sums few addends in these types: the difference is within the noise of a tiny model.
    if (c.parallel.strategy != "optimus-2d") {
      EXPECT_LT(errors(wide, exact), errors(usual, exact));
    }
    EXPECT_LT(errors(wide, exact), 1.1 * errors(rough, exact));
    EXPECT_NEAR(wide.losses[9], rough.losses[9], 2e-3 * rough.losses[9]);
    Config other = c;  // nothing to round in fp32
    other.parallel.sum_dtype = "bf16";
    expect_same_bits(train(c, DType::f32, 2), train(other, DType::f32, 2));
  }
}

class Properties : public testing::TestWithParam<Case> {};

// Of every sequence another share counts: micro-batches, replicas and rows of ranks have unequal numbers of tokens.
TEST_P(Properties, LossIsAMeanOverAllTokensThatCountHoweverTheyAreSpread) {
  const Config& c = GetParam().config;
  const auto counts = [](int64_t sample, size_t position) {
    return position % 7 < static_cast<size_t>(sample % 4) + 1;
  };
  Tiny alone(on_one_rank(c), DType::f64, 1);
  const std::vector<double> expected = masked_steps(alone, c, counts);
  EXPECT_NEAR(expected[0], std::log(37.0), 0.7);
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f64, 1);
    EXPECT_LE(distance(masked_steps(run, c, counts), expected), 1e-10);
  });
}

TEST_P(Properties, ReplicasStayEqualAndAreCompared) {
  if (GetParam().name.starts_with("CrossedLlama"))
    GTEST_SKIP() << "every rank has columns of its own: there are no replicas";
  expect_replicas_compared(GetParam().config, 10);
}
TEST_P(Properties, MemoryIsPredictedForEveryRank) {
  const Config& c = GetParam().config;
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    device::DryDevice dry(1);
    const auto planned = comm::dry_world(world.size(), world.rank());
    train::Trainer plan(dry, *planned, c, kTinyVocab, DType::f32, true);
    plan.plan();
    Tiny run(&world, c, DType::f32, 1);
    for (int64_t n = 1; n <= 2; ++n) run.step(n);
    EXPECT_EQ(run.trainer.memory(), plan.memory()) << "rank " << world.rank();
  });
}
TEST_P(Properties, NormCountsEveryParameterOnce) { expect_norm_counts_every_parameter_once(GetParam().config); }
TEST_P(Properties, GenerationContinuesAsOneRankDoes) { expect_text_continued_as_on_one_rank(GetParam().config); }
INSTANTIATE_TEST_SUITE_P(Some, Properties,
                         testing::ValuesIn(named({"Tensor2Data2SpEach1Gpt2",
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
                                                  "Q2Depth1Data1LlamaAutoRingTile1x1Masks"})),
                         name_of_case);

TEST(LayoutLoss, OfARanksOwnRowsIsThatOfOneRank) {
  for (const Case& one : named({"Tensor4Data1SpEach1Llama", "Q2Depth1Data1Gpt2AutoRingTile1x1", "X2Y2Z1Data1Llama"})) {
    const auto masked = [&](Tiny& run) {
      data::TokenBatch batch;
      run.batches(0, one.config.train.micro_batch, batch);
      for (size_t r = 0; r < batch.weights.size(); ++r) batch.weights[r] = r % 5 == 1 || r > 40 ? 0 : 1;
      double sum = run.trainer.loss_sum(batch);
      run.trainer.scalars().sum_over_rows({&sum, 1});
      return sum;
    };
    Tiny alone(on_one_rank(one.config), DType::f64, 1);
    const double expected = masked(alone);
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

TEST(LayoutCheckpoints, AreTheSameTensorsInAnyLayout) {
  const Config base = configure(Square{2});
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
        "Q4Depth1Data1Gpt2AutoRingTile2x2"})
    add(named({name}).front().config);
  add(on_one_rank(base));
  expect_same_tensors_in(chain);
}

// unit/config/layouts_test.cpp compares the shardings of named strategies with those of their tables. A deep mesh's
// squares become replicas there: the same numbers, and as many bytes.
TEST(LayoutTables, OfADeepMeshTrainTheSame) {
  const Config by_name = named({"Q2Depth2Data1Gpt2AutoRingTile1x1"}).front().config;
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
