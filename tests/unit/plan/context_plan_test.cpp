// The additive model's time and memory of ranks that split the tokens of sequences.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/join.h"
#include "config/layouts.h"
#include "config/load.h"
#include "plan/layer_costs.h"
#include "plan/plan_text.h"
#include "plan/planner.h"
#include "rigs/cluster_files.h"
#include "rigs/messages.h"

namespace trainer::plan {
namespace {

using config::Config;
using sharding::Transfer;

Config model(const std::vector<std::string>& sets) {
  return config::load_text(R"([model]
arch = "llama"
n_layer = 4
n_head = 24
n_kv_head = 12
head_dim = 8
d_model = 128
d_ff = 256
seq_len = 4096
[data]
vocab_size = 512
[train]
global_batch = 4
micro_batch = 2
recompute = "none"
[precision]
compute = "bf16"
[parallel]
data = 1
stages = 1
)",
                           "test.toml", sets, {.files = false});
}

/// Returns a layout on `context` ranks that split tokens times `tensor` ranks that split heads and columns.
ModelSharding layout(int64_t layers, int64_t context, int64_t tensor, Transfer schedule, bool exchanges = true) {
  ModelSharding s{.axes = {{"data", 1}, {"context", context}, {"tensor", tensor}}};
  const AxisSet c = s.find("context"), t = s.find("tensor");
  const LinearSharding columns{.rows = c, .cols = t, .flat = c}, rows{.rows = c, .contraction = t, .flat = c};
  s.layers = {{.stream = {.rows = c | t},
               .attention = {.rows = c, .cols = t},
               .mlp = {.rows = c, .cols = t},
               .linears = {{Site::qkv, columns}, {Site::out, rows}, {Site::up, columns}, {Site::down, rows}},
               .count = layers,
               .context = exchanges ? sharding::ContextSharding{c, schedule} : sharding::ContextSharding()}};
  s.head = s.layers.front().stream;
  s.table = {.vocab = t, .flat = c};
  return s;
}

double step_seconds(const Config& config, const Cluster& cluster, const ModelSharding& layout) {
  RouteShares routes;
  return LayerCosts(cluster, config, 512, DType::bf16, layout, routes).step_seconds(layout);
}
double bytes(const Config& config, const ModelSharding& layout) {
  RouteShares routes;
  return LayerCosts(tests::cluster_file("h100"), config, 512, DType::bf16, layout, routes).bytes(layout);
}
/// Returns the seconds that the exchange adds to a step.
double exchange_seconds(const Config& config, const Cluster& cluster, int64_t context, int64_t tensor, Transfer how) {
  const int64_t layers = config.model.n_layer;
  return step_seconds(config, cluster, layout(layers, context, tensor, how)) -
         step_seconds(config, cluster, layout(layers, context, tensor, how, false));
}

/// Returns ranks whose time is that of bytes on their links, each 1 GB/s.
Cluster only_links() {
  Cluster cluster = tests::cluster_file("h100");
  for (auto& [type, peak] : cluster.peaks) peak = 1e24;
  cluster.attentions.clear();
  cluster.memory_rate = 1e24;
  cluster.operator_seconds = cluster.units = cluster.half_k = 0;
  cluster.intra = {.gb_per_s = 1};
  return cluster;
}

/// Returns the segments of a sequence that ranks receive if a query sees `window` keys.
double received(int64_t ranks, int64_t length, int64_t window) {
  size_t count = 0;
  for (int64_t k = 0; k < ranks; ++k) {
    std::set<int64_t> needed;
    for (const int64_t own : {k, 2 * ranks - 1 - k})
      for (int64_t key = own * length - window + 1; key < (own + 1) * length; ++key)
        if (key >= 0) needed.insert(key / length);
    count += needed.size() - 2;
  }
  return static_cast<double>(count);
}

// n keys and values of a context with c ranks, sent in 2 bytes, their gradients in 4: (c−1)·n by gathers, and by a
// ring; a window only the segments it needs.
TEST(ContextPlan, TakesTheTimeOfItsBytes) {
  for (const int64_t c : {2, 4, 8})
    for (const int64_t tensor : {int64_t{1}, 8 / c})
      for (const int64_t window : {0, 100, 257, 1000, 4096})
        for (const int64_t full_every : {0, 4})
          for (const Transfer how : {Transfer::at_once, Transfer::ring})
            for (const bool again : {false, true}) {
              if (window == 0 && full_every > 0) continue;
              std::vector<std::string> sets;
              if (window > 0) sets = {format("model.window={}", window)};
              if (window > 0) sets.push_back(format("model.window_full_every={}", full_every));
              Config config = model(sets);
              if (again) config.train.recompute = config::Recompute::full;
              const auto ranks = static_cast<double>(c);
              const double n = 2.0 * 4096 * 2 * 12 / static_cast<double>(tensor) * 8, segment = n / (2 * ranks);
              const double passes = again ? 2 : 1;
              const double halo = received(c, 4096 / (2 * c), window) * segment * (2 * passes + 2 + 4);
              const double all = (ranks - 1) * n * (2 * passes + 2 + 4);
              const double windowed = window == 0 || window == 4096 ? 0 : full_every == 0 ? 4 : 3;
              const double sent = 2 * (windowed * halo + (4 - windowed) * all) / ranks;  // two micro-batches
              EXPECT_NEAR(exchange_seconds(config, only_links(), c, tensor, how), sent * 1e-9,
                          1e-5 * sent * 1e-9)  // whole elements
                  << c << " x " << tensor << ", window " << window << " of all but every " << full_every;
            }
}

// 12 key heads are gathered in four parts, 3 heads in three, one in one part.
TEST(ContextPlan, OverlapsAllOfARingAndAllButTheFirstPartOfAGather) {
  Cluster slow = only_links();
  for (auto& [type, peak] : slow.peaks) peak = 1e10;
  for (const auto& [tensor, parts] : {std::pair<int64_t, double>{1, 4}, {4, 3}}) {
    const Config config = model({});
    const double n = 2.0 * 4096 * 2 * 12 / static_cast<double>(tensor) * 8, layers = 2 * 4;  // two micro-batches
    const double gathered = layers * n / 2 * (2 + 2 + 4) / parts * 1e-9;
    const auto exchange = [&](Transfer how) { return exchange_seconds(config, slow, 2, tensor, how); };
    EXPECT_NEAR(exchange(Transfer::at_once) / gathered, 1, 1e-6) << tensor;
    EXPECT_NEAR(exchange(Transfer::ring) / gathered, 0, 1e-6) << tensor;
  }
}

/// Returns the layouts on `devices` that a search over the keys that are not in `sets` visits.
std::vector<Config> searched(const std::vector<std::string>& sets, int64_t devices) {
  Config config = model(sets);
  for (const char* key : {"parallel.shards", "parallel.context"}) config.origins.erase(key);
  std::string broken;
  return config::enumerate_layouts(config, devices, broken);
}

// With as many ranks of rows, sharing sequences is never faster than splitting the micro-batch.
TEST(ContextPlan, TriesTheFastestNumberOfRanksThatShareSequences) {
  const Cluster cluster = tests::cluster_file("h100");
  for (const char* size : {"model.n_head=12", "model.seq_len=16384", "model.n_layer=8"})
    for (const int64_t sequences : {1, 2, 6}) {
      const auto sets = [&](int64_t context) {
        std::vector<std::string> all = {"parallel.strategy=fsdp",
                                        "parallel.shards=8",
                                        "model.seq_len=8192",
                                        format("train.micro_batch={}", sequences),
                                        format("train.global_batch={}", sequences),
                                        format("parallel.context={}", context)};
        all.emplace_back(size);
        return all;
      };
      const auto seconds = [&](int64_t context) {
        return price_config(model(sets(context)), 512, cluster).time.total();
      };
      const int64_t fewest = 8 / std::gcd(8, sequences);
      const std::vector<Config> found = searched(sets(fewest), 8);
      ASSERT_FALSE(found.empty()) << sequences;
      for (const Config& one : found) EXPECT_EQ(one.parallel.context, fewest);
      for (int64_t more = 2 * fewest; more <= 8; more *= 2)
        EXPECT_LE(seconds(fewest), seconds(more)) << sequences << " sequences, context " << more;
    }
}

TEST(ContextPlan, TriesContextsOfEveryStrategy) {
  using Contexts = std::set<int64_t>;
  const auto contexts = [](const char* strategy, const char* more) {
    Contexts all;
    for (const Config& found : searched({format("parallel.strategy={}", strategy), more}, 4))
      all.insert(found.parallel.context);
    return all;
  };
  EXPECT_EQ(contexts("megatron-1d", "model.seq_len=4096"), (Contexts{1, 2, 4}));
  EXPECT_EQ(contexts("megatron-1d", "model.seq_len=2048"), (Contexts{1, 2})) << "1024 tokens of a sequence on a rank";
  EXPECT_EQ(contexts("axonn-4d", "train.micro_batch=2"), (Contexts{1, 2}));
  EXPECT_EQ(contexts("optimus-2d", "train.micro_batch=1"), (Contexts{2}));
  EXPECT_EQ(contexts("optimus-2d", "train.micro_batch=2"), (Contexts{1}));
  const Config fsdp = model({"parallel.strategy=fsdp", "parallel.shards=4", "parallel.context=4"});
  std::set<std::pair<int64_t, config::Panels>> kinds;
  for (const Config& other : config::variants(fsdp, 8))
    kinds.emplace(other.parallel.context_heads, other.parallel.context_kv);
  for (const int64_t heads : {1, 2}) EXPECT_TRUE(kinds.contains({heads, config::Panels::ring})) << heads;
}

// Llama 3 8B, a million tokens on 64 ranks, one sequence: a gather needs 6.44 GB, a ring 0.94 GB.
TEST(ContextPlan, NeedsTheMemoryOfItsBuffers) {
  const Config config = model({"model.n_layer=32", "model.d_model=4096", "model.n_head=32", "model.n_kv_head=8",
                               "model.head_dim=128", "model.d_ff=14336", "model.seq_len=1048576",
                               "train.global_batch=1", "train.micro_batch=1", "train.recompute=full"});
  const double tokens = 1048576, gather = 2 * tokens * 2 * 2 * 128 * (2 + 4),
               ring = tokens / 64 * (2 * 8 * 128 * (2 * 2 + 4 * 4) + 32 * 128 * 4);
  EXPECT_NEAR(gather, 6.44e9, 0.01e9);
  EXPECT_NEAR(ring, 0.94e9, 0.01e9);
  EXPECT_NEAR(bytes(config, layout(32, 64, 1, Transfer::at_once)) - bytes(config, layout(32, 64, 1, Transfer::ring)),
              gather - ring, 1e3);
}

// Eight query heads to a key head: the merges of a ring cost more time than the part of a gather that is not
// overlapped, but a gather takes more memory.
TEST(ContextPlan, PassesOnKeysWhereAGatherDoesNotFit) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"parallel.strategy=fsdp",   "parallel.shards=8",       "parallel.context=8",
                                     "parallel.context_heads=1", "parallel.cache_layers=0", "model.seq_len=131072",
                                     "model.n_head=32",          "model.n_kv_head=4",       "model.head_dim=128",
                                     "train.global_batch=1",     "train.micro_batch=1",     "train.recompute=full",
                                     "offload.optimizer=none"};
    sets.insert(sets.end(), more.begin(), more.end());
    return model(sets);
  };
  Cluster cluster = tests::cluster_file("h100");
  const PlannedRun gather = price_config(with({"parallel.context_kv=gather"}), 512, cluster),
                   ring = price_config(with({"parallel.context_kv=ring"}), 512, cluster);
  ASSERT_LT(gather.time.total(), ring.time.total());
  ASSERT_GT(gather.plan.total, ring.plan.total);
  const auto planned = [&] {
    return plan_layouts({.config = with({}), .vocab = 512, .devices = 8, .threads = 1}, cluster);
  };
  const Plan plenty = planned();
  ASSERT_EQ(plenty.runs.size(), 2u);
  EXPECT_EQ(plenty.runs.front().config.parallel.context_kv, config::Panels::gather);
  // In the middle between what the two need.
  cluster.memory_bytes *= 0.5 * static_cast<double>(gather.plan.total + ring.plan.total) / plenty.memory_limit;
  const Plan less = planned();
  ASSERT_EQ(less.runs.size(), 1u);
  EXPECT_EQ(less.runs.front().config.parallel.context_kv, config::Panels::ring);
}

// One sequence and three heads on 16 devices: there is a layout only if 32 segments divide the length.
TEST(ContextPlan, NamesTheNearestLengthsThatRanksCanShare) {
  const auto plan = [](const std::vector<std::string>& more, double memory) {
    std::vector<std::string> sets = {"model.n_head=3",       "model.n_kv_head=3",   "model.seq_len=20000",
                                     "train.global_batch=1", "train.micro_batch=1", "parallel.strategy=fsdp"};
    sets.insert(sets.end(), more.begin(), more.end());
    Config config = model(sets);
    Cluster cluster = tests::cluster_file("h100");
    cluster.memory_bytes *= memory;
    return plan_layouts({.config = config, .vocab = 512, .devices = 16, .threads = 1}, cluster);
  };
  tests::expect_error(Code::config, {"no layout on 16 devices", "seq_len = 20008", "2 x 16", "20000 or 20032"},
                      [&] { plan({"model.seq_len=20008"}, 1); });
  const auto left_out = [](const Plan& found) { return format("{}", fmt::join(found.left_out, "; ")); };
  EXPECT_EQ(left_out(plan({}, 1)).find("seq_len"), std::string::npos);
  const std::vector<std::string> many = {"train.global_batch=16", "train.micro_batch=16", "model.seq_len=20008"};
  tests::expect_parts(left_out(plan(many, 1)), {"parallel.context: seq_len = 20008", "use seq_len = 20000 or 20032"});
  const Plan small = plan(many, 1e-6);
  ASSERT_TRUE(small.runs.empty());
  tests::expect_parts(why_nothing_fits(small), {"no layout fits", "use seq_len = 20000 or 20032"});
}

// A million tokens of Llama 3 8B on 64 H100: heads over the devices of a node, tokens over nodes.
TEST(ContextPlan, FindsALayoutForAMillionTokens) {
  const Config config = config::load_text(R"([model]
arch = "llama"
n_layer = 32
d_model = 4096
d_ff = 14336
n_head = 32
n_kv_head = 8
tie_embeddings = false
seq_len = 1048576
[data]
vocab_size = 128256
[train]
global_batch = 1
[parallel]
strategy = "megatron-1d"
)",
                                          "million.toml", {}, {.files = false, .plans = true});
  const Plan plan =
      plan_layouts({.config = config, .vocab = 128256, .devices = 64, .threads = 2}, tests::cluster_file("h100"));
  ASSERT_FALSE(plan.runs.empty());
  const auto found = std::ranges::find_if(plan.runs, [](const PlannedRun& run) {
    const config::Parallel& p = run.config.parallel;
    return p.tensor == 8 && p.context == 8 && p.context_kv == config::Panels::ring;
  });
  ASSERT_TRUE(found != plan.runs.end());
  EXPECT_LE(found->time.total(), 1.05 * plan.runs.front().time.total()) << plan.runs.front().layout;
  EXPECT_NEAR(found->time.attention / found->time.total(), 0.94, 0.04);
}

}  // namespace
}  // namespace trainer::plan
