// The table of named strategies: its rows, which layouts fit, the nearest layouts that fit, and all layouts of N ranks.
#include "config/layouts.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/join.h"
#include "base/philox.h"
#include "config/context.h"
#include "config/keys.h"
#include "config/layout_choices.h"
#include "config/load.h"
#include "config/sharding_spec.h"

namespace trainer::config {
namespace {

Config configure(const std::vector<std::string>& sets) {
  return load_text(
      "[model]\nn_layer = 3\nn_head = 12\nd_model = 96\nd_ff = 144\nvocab_multiple = 48\nseq_len = 32\n"
      "[train]\nglobal_batch = 24\nmicro_batch = 12\n",
      "layouts.toml", sets, {.files = false, .plans = true});
}

std::string broken(const Config& config) {
  std::string all;
  for (const BrokenRule& rule : broken_rules(config)) all += rule.text + "\n";
  return all;
}

/// Returns random layouts of every strategy, all of which fit.
std::vector<Config> random_layouts(int count) {
  const PhiloxKey key = philox_key(3, "layouts");
  uint64_t next = 0;
  std::vector<Config> all;
  while (static_cast<int>(all.size()) < count) {
    Config trial = configure({"parallel.data=2"});
    const NamedStrategy& strategy = *strategies()[philox_at(key, next++) % 4];
    trial.parallel.strategy = strategy.id;
    if (philox_at(key, next++) % 2 == 0) trial.parallel.stationary = Stationary::paper;
    if (philox_at(key, next++) % 2 == 0) trial.parallel.vocab_axes = VocabAxes::xy;
    constexpr AxisOrder kOrders[] = {AxisOrder::yxzd, AxisOrder::xyzd, AxisOrder::zxyd};
    trial.parallel.order = kOrders[philox_at(key, next++) % 3];
    if (philox_at(key, next++) % 2 == 0) trial.parallel.node_tile = {1, 2};
    if (philox_at(key, next++) % 2 == 0) trial.model.n_expert = 8, trial.model.d_expert = 48;
    trial.parallel.context = std::array{1, 1, 2, 4, 8}[philox_at(key, next++) % 5];
    if (philox_at(key, next++) % 2 == 0) trial.parallel.context_heads = 1;
    if (philox_at(key, next++) % 2 == 0) trial.parallel.context_kv = Panels::ring;
    std::vector<Parallel> settings;
    strategy.each(trial, int64_t{1} << philox_at(key, next++) % 6, [&](const Parallel& p) { settings.push_back(p); });
    if (settings.empty()) continue;
    trial.parallel = settings[philox_at(key, next++) % settings.size()];
    if (layout_fits(trial)) all.push_back(trial);
  }
  return all;
}

TEST(NamedStrategies, EqualTheirLetters) {
  int with_experts = 0, with_tokens = 0;
  for (const Config& named : random_layouts(200)) {
    Config tables = named;
    const bool fsdp = named.parallel.strategy == StrategyName::fsdp,
               splits_tokens = named.parallel.context > (fsdp ? context_heads(named) : 1);
    if (splits_tokens) tables.parallel.context_kv = Panels::automatic;  // the sharding says how
    const sharding::ModelSharding by_name = sharding_of(named);
    set_tables(tables, by_name);
    ASSERT_TRUE(layout_fits(tables)) << layout_text(named) << ": " << broken(tables);
    EXPECT_EQ(ranks_of_replica(tables) * tables.parallel.data, ranks_of_replica(named) * 2) << layout_text(named);
    with_experts += named.parallel.experts > 1;
    EXPECT_EQ(tables.parallel.layer.front().experts.find('e') != std::string::npos, named.parallel.experts > 1);
    with_tokens += splits_tokens;
    EXPECT_EQ(tables.parallel.layer.front().attention.find('s') != std::string::npos, splits_tokens)
        << layout_text(named);
    if (by_name.depth() > 1) continue;  // tables have replicas instead of a depth
    EXPECT_EQ(anonymous(sharding_of(tables)), anonymous(by_name)) << layout_text(named);
  }
  EXPECT_GT(with_experts, 5);
  EXPECT_GT(with_tokens, 10);
}

TEST(NamedStrategies, DivideExpertsOverRanksWithDifferentRows) {
  Config c = configure({"parallel.strategy=fsdp", "parallel.shards=12", "parallel.context=2"});
  c.model.n_expert = 6, c.model.d_expert = 48;
  c.parallel.experts = 3;
  const sharding::ModelSharding s = sharding_of(c);
  EXPECT_EQ(s.axes, (std::vector<sharding::Axis>{{"data", 1}, {"batch", 2}, {"experts", 3}, {"context", 2}}));
  EXPECT_EQ(s.find("shards"), 0b1110u);
  EXPECT_EQ(s.layers[0].experts, 0b0100u);
  EXPECT_EQ(s.layers[0].attention, (sharding::Spread{.rows = 0b0110, .cols = 0b1000}));
  EXPECT_TRUE(layout_fits(c));
  c.parallel.experts = 4;
  EXPECT_NE(broken(c).find("experts = 4 does not divide shards / context = 6; use one of 1, 2, 3, 6"),
            std::string::npos)
      << broken(c);

  c = configure({"parallel.tensor=2"});
  c.model.n_expert = 6, c.model.d_expert = 48;
  c.parallel.experts = 4;
  EXPECT_EQ(ranks_of_replica(c), 8);
  EXPECT_NE(broken(c).find("4 ranks cannot divide n_expert = 6 evenly; use one of 1, 2, 3, 6"), std::string::npos)
      << broken(c);
  c.parallel.experts = 3;
  ASSERT_TRUE(layout_fits(c)) << broken(c);
  EXPECT_NE(replica_text(c).find("experts = 3 x tensor = 2"), std::string::npos);
  const std::vector<Parallel> layouts = replica_layouts(c, 6);
  EXPECT_EQ(std::ranges::count(layouts, int64_t{3}, &Parallel::experts), 1);
  EXPECT_EQ(layouts.front().experts, 1);
  c.model.n_expert = 0;
  EXPECT_NE(broken(c).find("the model has no experts"), std::string::npos) << broken(c);
}

TEST(NamedStrategies, OfOneRankAreOneSharding) {
  Config one = configure({});
  const sharding::ModelSharding single = anonymous(sharding_of(one));
  for (const char* set : {"parallel.strategy=fsdp", "parallel.strategy=optimus-2d", "parallel.strategy=axonn-4d"}) {
    sharding::ModelSharding other = anonymous(sharding_of(configure({set})));
    for (sharding::Layer& layer : other.layers)
      for (auto& [site, linear] : layer.linears) linear.schedule = sharding::Transfer::at_once;
    EXPECT_EQ(other, single) << set;
  }
}

TEST(NamedStrategies, RanksOfAReplicaAreTheProductOfTheirExtents) {
  for (const auto& [sets, ranks, text] :
       {std::tuple<std::vector<std::string>, int64_t, const char*>{{"parallel.tensor=4"}, 4, "tensor = 4"},
        {{"parallel.strategy=fsdp", "parallel.shards=6"}, 6, "shards = 6"},
        {{"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2, 3]"}, 12, "mesh = [2, 2, 3]"},
        {{"parallel.strategy=axonn-4d", "parallel.grid=[2, 1, 4]"}, 8, "grid = [2, 1, 4]"}}) {
    const Config c = configure(sets);
    EXPECT_EQ(ranks_of_replica(c), ranks);
    EXPECT_EQ(sharding_of(c).ranks_of_replica(), ranks);
    EXPECT_EQ(replica_text(c), text);
  }
}

TEST(NamedStrategies, FsdpIsAGridOfOneAxis) {
  for (const int64_t shards : {2, 3, 4, 12}) {
    Config sharded = configure({"parallel.strategy=fsdp", "parallel.data=2", "parallel.cache_layers=1"}),
           grid = sharded;
    sharded.parallel.shards = shards;
    grid.parallel.strategy = StrategyName::axonn_4d;
    grid.parallel.grid = {1, 1, shards};
    EXPECT_EQ(anonymous(sharding_of(sharded)), anonymous(sharding_of(grid)));
  }
}

TEST(NamedStrategies, AutomaticPanelsAreGatheredUnlessMemoryDecides) {
  Config c = configure({"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]"});
  ASSERT_EQ(c.parallel.panels, Panels::automatic);
  const std::vector<Parallel> choices = choices_by_memory(c);
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].panels, Panels::gather);
  EXPECT_EQ(choices[1].panels, Panels::ring);
  const sharding::ModelSharding automatic = sharding_of(c);
  c.parallel = choices[0];
  EXPECT_EQ(sharding_of(c), automatic);
  EXPECT_EQ(choices_by_memory(c).size(), 1u);
  EXPECT_EQ(choices_by_memory(configure({"parallel.tensor=2"})).size(), 1u);
}

TEST(NamedStrategies, AutomaticVocabularyAxesSendFewerBytes) {
  struct Choice {
    std::vector<std::string> sets;
    int64_t vocab;
    DType compute;
    VocabAxes expected;
  };
  // Bytes per token, times (y - 1) / y: 8 · vocab / x for logits; for features 10 · 768 in bf16 and 16 · 768 in fp32.
  for (const auto& [sets, vocab, compute, expected] :
       {Choice{{"parallel.grid=[2, 2, 2]"}, 50257, DType::bf16, VocabAxes::xy},
        {{"parallel.grid=[2, 2, 2]"}, 1920, DType::bf16, VocabAxes::x},  // equal bytes
        {{"parallel.grid=[2, 2, 2]"}, 1922, DType::bf16, VocabAxes::xy},
        {{"parallel.grid=[2, 2, 2]"}, 3072, DType::f32, VocabAxes::x},
        {{"parallel.grid=[2, 2, 2]"}, 3074, DType::f32, VocabAxes::xy},
        {{"parallel.grid=[4, 1, 2]"}, 50257, DType::bf16, VocabAxes::automatic},  // y = 1: both are the same
        {{"parallel.grid=[2, 2, 2]", "parallel.vocab_axes=x"}, 50257, DType::bf16, VocabAxes::x},
        {{"parallel.grid=[2, 4, 1]", "model.vocab_multiple=4"},
         50257,
         DType::bf16,
         VocabAxes::x},  // 8 ranks do not divide it
        {{"parallel.strategy=megatron-1d", "parallel.tensor=2"}, 50257, DType::bf16, VocabAxes::automatic}}) {
    std::vector<std::string> all = {"parallel.strategy=axonn-4d", "model.d_model=768"};
    all.insert(all.end(), sets.begin(), sets.end());
    Config c = configure(all);
    choose_vocab_axes(c, vocab, compute);
    EXPECT_EQ(c.parallel.vocab_axes, expected) << fmt::format("{}", fmt::join(all, " "));
  }
}

/// A message must have the extent, the ranks, the axis and the remedy.
TEST(BrokenRules, NameTheExtentTheRanksAndTheNearestThatFits) {
  struct Mistake {
    std::vector<std::string> sets;
    std::vector<const char*> parts;
  };
  for (const auto& [sets, parts] : {
           Mistake{{"parallel.tensor=5"}, {"n_head = 12 heads", "5 ranks along tensor", "tensor = 4 or 6 fits"}},
           {{"parallel.tensor=8", "model.n_head=8", "model.n_kv_head=8", "model.d_ff=36"},
            {"d_ff = 36", "8 ranks along tensor", "tensor = 4 fits"}},
           {{"parallel.tensor=4", "model.n_kv_head=3"}, {"n_kv_head = 3 heads", "tensor = 3 or 6 fits"}},
           {{"parallel.tensor=12", "model.seq_len=5", "train.micro_batch=1"},
            {"token rows", "12 ranks along tensor", "sequence_parallel = false fits"}},
           {{"parallel.strategy=optimus-2d", "parallel.mesh=[2, 3]"}, {"square", "use [2, 2]"}},
           {{"parallel.strategy=optimus-2d", "parallel.mesh=[1, 2]", "parallel.panels=ring"},
            {"found 1 x 2 ranks along row and col", "mesh = [2, 2] fits"}},
           {{"parallel.strategy=optimus-2d", "parallel.mesh=[5, 5]"}, {"5 ranks along col", "mesh = [2, 2, 6]"}},
           {{"parallel.strategy=optimus-2d", "parallel.mesh=[4, 4]", "parallel.node_tile=[3, 1]"},
            {"node_tile = [3, 1]", "use node_tile = [1, 1]"}},
           {{"parallel.strategy=optimus-2d", "parallel.mesh=[6, 6]", "model.n_kv_head=3", "parallel.node_tile=[1, 3]"},
            {"n_kv_head = 3", "node_tile = [1, 1] fits"}},
           {{"parallel.strategy=axonn-4d", "parallel.grid=[5, 1, 1]"}, {"n_head = 12", "5 ranks along x", "grid = "}},
           {{"parallel.strategy=axonn-4d", "parallel.grid=[2, 2, 1]", "model.d_ff=145"},
            {"d_ff = 145", "2 ranks along x", "grid = [1, 2, 2] fits, or d_ff = 144 or 146 fits"}},
           {{"parallel.strategy=fsdp", "parallel.shards=8"},
            {"micro_batch = 12 sequences", "8 ranks along shards", "shards = 6 or 12 fits", "micro_batch = 8 or 16"}},
           {{"parallel.strategy=fsdp", "parallel.shards=6", "parallel.context=4"},
            {"context = 4", "shards = 6", "use context = 2, or shards = 8"}},
           {{"parallel.strategy=fsdp", "parallel.shards=8", "parallel.context=8", "parallel.context_heads=8"},
            {"8 does not divide n_head = 12", "use 1, 2 or 4 (or 0)"}},
           {{"parallel.strategy=fsdp", "parallel.shards=8", "parallel.context=8", "parallel.context_heads=3"},
            {"3 does not divide context = 8", "use 1, 2, 4 or 8"}},
           {{"parallel.strategy=fsdp", "parallel.shards=16", "parallel.context=16", "parallel.context_heads=1",
             "model.seq_len=1000"},
            {"16 ranks along context split the tokens of a sequence into 32 equal segments", "seq_len = 1000",
             "seq_len = 992 or 1024"}},
           {{"parallel.strategy=fsdp", "parallel.shards=16", "parallel.context=16", "parallel.context_heads=8",
             "model.n_head=24", "model.n_kv_head=6"},
            {"n_kv_head = 6 heads", "neither be split evenly over 8 ranks along heads", "shared",
             "context_heads = 2 fits"}},
           {{"parallel.strategy=fsdp", "parallel.shards=8", "parallel.context=4", "train.micro_batch=3"},
            {"micro_batch = 3 sequences", "2 ranks along batch", "shards = 4 or 12 fits", "micro_batch = 2 or 4"}},
           {{"parallel.strategy=axonn-4d", "parallel.grid=[2, 1, 4]", "parallel.context=8"},
            {"8 does not divide z = 4 of parallel.grid", "use 1, 2 or 4"}},
           {{"parallel.strategy=optimus-2d", "parallel.mesh=[4, 4]", "parallel.context=2"},
            {"optimus-2d shares sequences among all ranks of axis row", "use 1 or 4"}},
           {{"parallel.strategy=axonn-4d", "parallel.grid=[1, 1]"}, {"three sizes [x, y, z]", "found 2"}},
       }) {
    const std::string text = broken(configure(sets));
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_EQ(broken(configure({"parallel.tensor=4"})), "");
  EXPECT_THROW(sharding_on(configure({"parallel.tensor=5"}), 5), Error);
}

TEST(BrokenRules, NameTheKeyThatIsTheCause) {
  const std::string
      layer =
          "[[parallel.layer]]\nstream = \"--\"\nattention = \"--\"\nhidden = \"--\"\nqkv = \"--\"\nout = \"--\"\n"
          "up = \"--\"\ndown = \"--\"\n",
      tables = "[parallel]\nstrategy = \"autoddl\"\naxes = [2, 2]\ndata = 1\n";
  const auto message = [&](const std::string& keys, const std::string& tables_of_layers) {
    try {
      load_text(tables + keys + tables_of_layers, "x.toml", {}, {.files = false});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("", layer), "no error");
  const std::string table = message("table = \"f-\"\n", layer);
  EXPECT_TRUE(table.starts_with("x.toml:5:9: parallel.table: ")) << table;
  std::string ring = layer + "schedule = \"ring\"\n";
  ring.replace(ring.find("qkv = \"--"), 9, "qkv = \"c-");
  const std::string wrong = message("", ring);
  EXPECT_TRUE(wrong.starts_with("x.toml:5:")) << wrong;
  EXPECT_NE(wrong.find("parallel.layer: the ring schedule of qkv"), std::string::npos) << wrong;
  const auto with = [&](const char* attention) {
    std::string text = layer;
    return text.replace(text.find("attention = \"--"), 15, std::string("attention = \"") + attention);
  };
  for (const auto& [first, second, place] : {std::tuple{"s-", "r-", "table 2: "}, {"r-", "s-", "table 1: "}}) {
    const std::string orders = message("", with(first) + "layers = 4\n" + with(second));
    EXPECT_TRUE(orders.starts_with("x.toml:5:")) << orders;
    for (const char* part : {"parallel.layer: ", place, "attention must split rows along the same axes", "along a"})
      EXPECT_NE(orders.find(part), std::string::npos) << part << " in\n" << orders;
  }
}

double distance(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  double sum = 0;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i)
    sum += std::abs(std::log2(double(i < a.size() ? a[i] : 1) / double(i < b.size() ? b[i] : 1)));
  return sum;
}

// For all grids of up to 64 ranks and three models: the grids that a message suggests fit, have the nearest numbers of
// ranks, and are the nearest grids with these numbers.
TEST(BrokenRules, NameTheNearestThatFits) {
  for (const char* heads : {"model.n_head=12", "model.n_head=8", "model.n_head=6"})
    for (int64_t x = 1; x <= 64; ++x)
      for (int64_t y = 1; x * y <= 64; ++y)
        for (int64_t z = 1; x * y * z <= 64; z *= 3) {
          Config c = configure({heads, "parallel.strategy=axonn-4d"});
          c.parallel.grid = {x, y, z};
          if (layout_fits(c)) continue;
          const std::string text = broken_rules(c).front().text;
          const size_t at = text.rfind("grid = [");
          ASSERT_NE(at, std::string::npos) << text;
          std::map<int64_t, double> least;  // by number of ranks: distance of the nearest grid that fits
          for (int64_t ranks = 1; ranks <= 2 * x * y * z; ++ranks)
            strategy_of(c).each(c, ranks, [&](const Parallel& p) {
              Config other = c;
              other.parallel = p;
              if (!layout_fits(other)) return;
              double& best = least.try_emplace(ranks, 1e9).first->second;
              best = std::min(best, distance(p.grid, c.parallel.grid));
            });
          std::vector<int64_t> expected = {std::prev(least.upper_bound(x * y * z))->first};
          if (expected[0] != x * y * z && least.upper_bound(x * y * z) != least.end())
            expected.push_back(least.upper_bound(x * y * z)->first);
          std::vector<int64_t> found;
          for (size_t from = text.find("; grid = "); (from = text.find('[', from)) != std::string::npos; ++from) {
            Config named = c;
            for (int i = 0, place = static_cast<int>(from) + 1; i < 3; ++i) {
              size_t used = 0;
              named.parallel.grid[static_cast<size_t>(i)] = std::stoll(text.substr(static_cast<size_t>(place)), &used);
              place += static_cast<int>(used) + 2;
            }
            EXPECT_TRUE(layout_fits(named)) << text;
            found.push_back(ranks_of_replica(named));
            EXPECT_NEAR(distance(named.parallel.grid, c.parallel.grid), least.at(found.back()), 1e-9) << text;
          }
          EXPECT_EQ(found, expected) << text;
        }
}

TEST(Layouts, AreEnumeratedUnderTheKeysThatAreGiven) {
  std::string broken;
  const auto count = [&](std::vector<std::string> sets, int64_t devices) {
    broken.clear();
    const Config c = load_text("[model]\nn_head = 8\nd_model = 64\n[train]\nglobal_batch = 8\n", "x.toml", sets,
                               {.files = false, .plans = true});
    std::map<std::string, int> by_strategy;
    for (const Config& each : enumerate_layouts(c, devices, broken)) {
      EXPECT_EQ(ranks_of_replica(each) * each.parallel.data, devices);
      EXPECT_TRUE(needs_spec(each) || layout_fits(each));
      EXPECT_EQ(each.train.global_batch % (each.train.micro_batch * each.parallel.data), 0);
      ++by_strategy[name_of(each.parallel.strategy)];
    }
    return by_strategy;
  };
  // data = 1, 2 and 4 allow 4, 3 and 2 micro-batch sizes; 2 stages with data = 1 and 2 allow 3 and 2, since they need
  // two micro-batches per step, 4 stages 2. Megatron layouts count with and without sequence parallelism, but only once
  // if tensor = 1.
  const auto all = count({}, 4);
  EXPECT_EQ(all.at("megatron-1d"), 4 * 2 + 3 * 2 + 2 + 3 * 2 + 2 + 2);
  EXPECT_EQ(count({"parallel.stages=2"}, 4).at("megatron-1d"), 4 * 2 + 3) << "with a bubble of half the step, too";
  EXPECT_EQ(count({"parallel.stages=1"}, 4).at("autoddl"), 4 + 3);
  EXPECT_EQ(all.at("optimus-2d"), 2 * 3) << "two kinds of panels; a micro-batch of 1 does not divide over two rows";
  EXPECT_EQ(all.at("autoddl"), 4 + 3 + 3);
  const auto given = count({"parallel.strategy=megatron-1d", "parallel.tensor=2", "train.micro_batch=2"}, 4);
  EXPECT_EQ(given.size(), 1u);
  EXPECT_EQ(given.at("megatron-1d"), 2 + 2) << "one and two stages";
  EXPECT_EQ(count({"parallel.strategy=megatron-1d", "parallel.sequence_parallel=false"}, 4).at("megatron-1d"),
            4 + 3 + 2 + 3 + 2 + 2)
      << "replicas of one rank have no sequences to split, and are there under either value";
  EXPECT_TRUE(count({"parallel.strategy=megatron-1d", "parallel.stages=1"}, 3).empty());
  EXPECT_NE(broken.find("n_head = 8 heads cannot be split evenly over 3 ranks along tensor"), std::string::npos)
      << broken;
  // With autoddl only: every named layout as tables, also pure data parallelism, and those left to the search.
  const auto tables = count({"parallel.strategy=autoddl"}, 4);
  EXPECT_EQ(tables.size(), 1u);
  EXPECT_GT(tables.at("autoddl"), all.at("autoddl") + all.at("megatron-1d"));
}

TEST(Layouts, AxisListsHaveAnAxisForTheRanksOfANode) {
  using Lists = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(axis_lists(4, 1), (Lists{{2, 2}, {4}}));
  for (const std::vector<int64_t>& list : axis_lists(64, 8)) {
    int64_t product = 1, inner = 1;
    for (const int64_t extent : list) product *= extent;
    EXPECT_EQ(product, 64);
    for (size_t i = list.size(); i-- > 0 && inner < 8;) inner *= list[i];
    EXPECT_TRUE(inner == 8 || list.size() == 1);
  }
}

}  // namespace
}  // namespace trainer::config
