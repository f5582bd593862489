// Plans of deep and large models: rows that are shown fit with all layers, more free keys never yield a slower plan,
// and the search of sharding specs finds what pricing every spec finds. TRAINER_PLAN_CASES sets the number of random
// cases.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "config/layouts.h"
#include "config/load.h"
#include "config/sharding_spec.h"
#include "plan/layout_search.h"
#include "plan/planner.h"
#include "rigs/cluster_files.h"
#include "rigs/draws.h"
#include "rigs/slow.h"

namespace trainer::plan {
namespace {

using config::Config;
using Sets = std::vector<std::string>;

using tests::Draws, tests::slow;

uint64_t cases(uint64_t usual) {
  const char* given = std::getenv("TRAINER_PLAN_CASES");
  return given == nullptr ? usual : static_cast<uint64_t>(std::atoll(given));
}

/// Plans without stages, whose memory stages_test.cpp compares.
Plan plan_of(const std::string& model, Sets sets, int64_t devices, const Cluster& cluster, size_t shown) {
  sets.emplace_back("parallel.stages=1");
  const Config config = config::load_text(model, "test.toml", sets, {.files = false, .plans = true});
  return plan_layouts({.config = config, .vocab = config.data.vocab_size, .devices = devices, .shown = shown}, cluster);
}

/// Compares the memory of a row with a dry run of all its layers.
void expect_exact(const PlannedRun& run, const Plan& plan, int64_t devices, const std::string& of) {
  Machine machine;
  machine.isa = device::Isa::avx2;
  machine.compute = plan.compute;
  machine.ranks = static_cast<int>(devices);
  machine.memory_limit = static_cast<int64_t>(plan.memory_limit);
  const RunPlan whole = plan_run(run.config, run.config.data.vocab_size, machine, true);
  EXPECT_TRUE(run.fits && run.whole) << of;
  EXPECT_EQ(run.plan.memory, whole.memory) << of << ": " << run.strategy << " " << run.layout;
  EXPECT_LE(run.plan.total, machine.memory_limit) << of;
}

std::string model_text(const std::string& arch, int64_t layers, int64_t heads, int64_t kv_heads, int64_t width,
                       int64_t wide, int64_t length, int64_t vocab, int64_t batch) {
  return format(
      "[model]\narch = \"{}\"\nn_layer = {}\nn_head = {}\nn_kv_head = {}\nd_model = {}\nd_ff = {}\nseq_len = {}\n"
      "[data]\nvocab_size = {}\n[train]\nglobal_batch = {}\n[precision]\ncompute = \"bf16\"\n",
      arch, layers, heads, kv_heads, width, wide, length, vocab, batch);
}

// With a large vocabulary the peak of a few layers is in the tables, that of 80 layers in the activations.
TEST(ConfirmedPlans, RowsOfADeepModelWithALargeVocabularyFit) {
  const Cluster cluster = tests::cluster_file("h100");
  const std::string llama = model_text("llama", 80, 64, 8, 8192, 28672, 4096, 128256, 1024);
  std::vector<Sets> all = {{"offload.optimizer=none", "train.recompute=full"}};
  if (slow()) all.emplace_back();
  for (const Sets& sets : all) {
    const Plan plan = plan_of(llama, sets, 256, cluster, 3);
    ASSERT_GE(plan.runs.size(), 3u);
    for (size_t i = 0; i < 3; ++i) expect_exact(plan.runs[i], plan, 256, "Llama-70B");
  }
}

TEST(ConfirmedPlans, RecomputeNoMoreLayersThanNecessary) {
  const Cluster cluster = tests::cluster_file("a100-80gb");
  const std::string gpt2 = model_text("gpt2", 48, 25, 25, 1600, 6400, 1024, 50257, 512);
  const Sets small = {"hardware.memory_limit=8", "offload.optimizer=none", "parallel.strategy=fsdp"};
  const auto best_with = [&](const std::string& set) {
    Sets sets = small;
    if (!set.empty()) sets.push_back(set);
    Plan plan = plan_of(gpt2, sets, 8, cluster, 3);
    EXPECT_FALSE(plan.runs.empty()) << set;
    for (size_t i = 0; i < std::min<size_t>(3, plan.runs.size()); ++i) expect_exact(plan.runs[i], plan, 8, set);
    return plan.runs.at(0);
  };
  const PlannedRun best = best_with("");
  const auto [recompute, layers] = std::pair{best.config.train.recompute, best.config.train.recompute_layers};
  EXPECT_EQ(recompute, config::Recompute::selective);
  ASSERT_GT(layers, 1);
  ASSERT_LT(layers, 48);
  Config fewer = best.config;
  --fewer.train.recompute_layers;
  EXPECT_FALSE(price_config(fewer, 50257, cluster).fits);
  // A key that is given stays.
  for (const char* set : {"train.recompute=full", "train.recompute_layers=0"}) {
    const PlannedRun full = best_with(set);
    EXPECT_EQ(full.config.train.recompute, config::Recompute::full) << set;
    EXPECT_GT(full.time.total(), best.time.total()) << set;
  }
}

struct Case {
  std::string model, cluster;
  int64_t devices = 1;
};

/// Models of 1 to 400 billion parameters.
Case random_case(uint64_t seed) {
  Draws draw(seed, "confirmed");
  struct Size {
    int64_t layers, width;
  };
  const auto [layers, width] = draw.one_of<Size>(
      {{24, 2048}, {32, 4096}, {40, 5120}, {48, 8192}, {80, 8192}, {60, 10240}, {96, 12288}, {126, 16384}});
  Case c;
  const bool llama = draw.below(2) == 0;
  const int64_t heads = width / 128, kv = llama ? heads / draw.one_of<int64_t>({1, 4, 8}) : heads;
  c.model = model_text(llama ? "llama" : "gpt2", layers, heads, kv, width, llama ? width * 7 / 2 : 4 * width,
                       draw.one_of<int64_t>({2048, 4096}), draw.one_of<int64_t>({32000, 50304, 128256}),
                       draw.one_of<int64_t>({512, 1024, 2048}));
  c.cluster = draw.one_of<std::string>({"a100-80gb", "h100", "perlmutter", "frontier"});
  c.devices = draw.one_of<int64_t>({64, 256, 512, 1024, 4096});
  return c;
}

TEST(ConfirmedPlans, BestRowsFitAndFreedomNeverMakesThemSlower) {
  constexpr double kRegret = 1.01;
  const uint64_t all = cases(slow() ? 2 : 1);
  for (uint64_t seed = 0; seed < all; ++seed) {
    const Case c = random_case(seed);
    const Cluster cluster = tests::cluster_file(c.cluster);
    const auto best = [&](const Sets& sets) {
      try {
        const Plan plan = plan_of(c.model, sets, c.devices, cluster, 1);
        if (plan.runs.empty()) return std::numeric_limits<double>::infinity();
        expect_exact(plan.runs.front(), plan, c.devices, format("seed {}", seed));
        return plan.runs.front().time.total();
      } catch (const Error& error) {  // no layout has these keys
        EXPECT_EQ(error.code(), Code::config) << error.what();
        return std::numeric_limits<double>::infinity();
      }
    };
    const double open = best({});
    EXPECT_LE(best({"parallel.strategy=autoddl"}), open * kRegret) << "seed " << seed;
    Draws draw(1000 + seed, "confirmed");
    const Sets given = draw.one_of<Sets>({{"parallel.strategy=megatron-1d"},
                                          {"parallel.strategy=optimus-2d"},
                                          {"parallel.strategy=axonn-4d"},
                                          {"parallel.data=4"},
                                          {"parallel.data=16"},
                                          {"train.recompute=full"},
                                          {"train.recompute=selective"},
                                          {"parallel.zero_stage=1"},
                                          {"offload.optimizer=none"},
                                          {"train.micro_batch=8"}});
    EXPECT_LE(open, best(given) * kRegret) << "seed " << seed << ": " << given.front();
  }
}

/// Returns every legal sharding spec, the same in all layers, over one axis besides "data".
std::vector<ModelSharding> all_specs(const ModelSharding& axes, const Config& config) {
  std::vector<ModelSharding> all;
  const AxisSet a = 2;
  const auto spread = [&](int choice) { return Spread{choice == 0 ? a : 0, choice == 1 ? a : 0}; };
  const auto linear = [&](int choice) {
    return LinearSharding{.rows = choice == 0 || choice == 3 ? a : 0,
                          .cols = choice == 1 ? a : 0,
                          .contraction = choice == 2 ? a : 0,
                          .flat = choice == 3 ? a : 0};
  };
  constexpr int kWays = 27 * 625 * 4;
  for (int way = 0; way < kWays; ++way) {
    int rest = way;
    const auto take = [&](int choices) {
      const int choice = rest % choices;
      rest /= choices;
      return choice;
    };
    ModelSharding spec{.axes = axes.axes, .groups = axes.groups};
    spec.layers.resize(1);
    sharding::Layer& layer = spec.layers.front();
    layer.count = config.model.n_layer;
    for (Spread* const each : {&layer.stream, &layer.attention, &layer.mlp}) *each = spread(take(3));
    for (const Site site : {Site::qkv, Site::out, Site::up, Site::down}) layer.at(site) = linear(take(5));
    const int table = take(4);
    spec.table = {.vocab = table == 0 ? a : 0, .width = table == 1 ? a : 0, .flat = table == 2 ? a : 0};
    spec.head = layer.stream;
    if (!first_violation(spec, config::extents_of(config))) all.push_back(std::move(spec));
  }
  return all;
}

// Specs are not priced if the additive model estimates them at more than 1.5 times the time of its best.
TEST(ConfirmedPlans, SearchFindsWhatPricingEverySpecOfOneAxisFinds) {
  constexpr double kRegret = 1.01, kPriced = 1.5;
  const uint64_t all = std::min<uint64_t>(cases(slow() ? 2 : 1), 40);
  for (uint64_t seed = 0; seed < all; ++seed) {
    Draws draw(2000 + seed, "confirmed");
    const int64_t heads = draw.one_of<int64_t>({4, 8, 12}), width = 64 * heads;
    const std::string model = model_text(draw.one_of<std::string>({"gpt2", "llama"}), 2, heads, heads, width, 4 * width,
                                         draw.one_of<int64_t>({128, 512}), draw.one_of<int64_t>({1024, 32000}), 8);
    Cluster cluster = tests::cluster_file(draw.one_of<std::string>({"a100-80gb", "h100", "perlmutter"}));
    cluster.intra.gb_per_s *= draw.one_of<double>({0.02, 0.1, 1});
    const Sets sets = {"parallel.strategy=autoddl", "parallel.axes=[2]",    "parallel.data=1",
                       "train.micro_batch=8",       "train.recompute=none", "offload.optimizer=none"};
    const Plan plan = plan_of(model, sets, 2, cluster, 1);
    ASSERT_FALSE(plan.runs.empty());

    std::string broken;
    const Config config = config::load_text(model, "test.toml", sets, {.files = false, .plans = true});
    const std::vector<Config> open =
        config::enumerate_layouts(config, 2, broken);  // named layouts, and one whose spec is searched
    const auto found = std::ranges::find_if(open, config::needs_spec);
    ASSERT_NE(found, open.end());
    const Pricer pricer(cluster, config, config.data.vocab_size, 2);
    LayoutSearch search(cluster, config.data.vocab_size, pricer.compute(), pricer.memory_limit());
    std::vector<PlannedRun> runs;
    for (const ModelSharding& spec : all_specs(config::sharding_of(*found), *found)) {
      Config tagged = *found;
      config::set_tables(tagged, spec);
      if (!config::layout_fits(tagged)) continue;
      runs.push_back(planned(tagged));
      search.estimate(runs.back());
      if (!spec.gathers_weights()) continue;
      tagged.parallel.cache_layers = config.model.n_layer;
      runs.push_back(planned(tagged));
      search.estimate(runs.back());
    }
    ASSERT_GE(runs.size(), 100u) << "seed " << seed;
    const double least = std::ranges::min_element(runs, {}, &PlannedRun::estimate)->estimate;
    double best = std::numeric_limits<double>::infinity();
    for (PlannedRun& run : runs) {
      if (run.estimate > kPriced * least) continue;
      pricer.price(run, Depth::all);
      best = std::min(best, run.time.total());
    }
    EXPECT_LE(plan.runs.front().time.total(), kRegret * best) << "seed " << seed;
  }
}

}  // namespace
}  // namespace trainer::plan
