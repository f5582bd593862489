// Properties that hold for any model and machine: per-layer layouts include the named strategies, more ranks hold less
// each, GEMMs are divided evenly, and no illegal layout is planned.
#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "plan/layer_costs.h"
#include "plan/planner.h"
#include "rigs/cluster_files.h"
#include "rigs/draws.h"

namespace trainer::plan {
namespace {

using config::Config;

using tests::Draws;

Config model(int64_t layers, int64_t heads, int64_t hidden, int64_t seq, int64_t batch,
             const std::vector<std::string>& sets = {}) {
  return config::load_text(format("[model]\nn_layer = {}\nn_head = {}\nd_model = {}\nd_ff = {}\nseq_len = {}\n"
                                  "vocab_multiple = 1024\n[data]\nvocab_size = 1024\n[train]\nglobal_batch = {}\n"
                                  "[precision]\ncompute = \"fp32\"\n",
                                  layers, heads, hidden, 4 * hidden, seq, batch),
                           "test.toml", sets, {.files = false});
}

Cluster random_cluster(Draws& draw) {
  Cluster c;
  c.name = "random";
  c.devices_per_node = static_cast<int>(draw.one_of<int64_t>({1, 4, 16}));
  c.memory_bytes = 1e15;
  c.memory_rate = draw.between(1e10, 3e12);
  c.operator_seconds = draw.between(0, 1e-5);
  c.peaks = {{DType::f32, draw.between(1e11, 1e14)}};
  c.half_m = c.half_n = draw.between(0, 200);
  c.half_k = draw.between(0, 100);
  c.intra = {.gb_per_s = draw.between(1, 300), .start_us = draw.between(0, 50), .hop_us = draw.between(0, 10)};
  c.inter = {.gb_per_s = draw.between(1, 100), .start_us = draw.between(0, 50), .hop_us = draw.between(0, 10)};
  return c;
}

TEST(Properties, CommunicationIsNeverFree) {
  Draws draw(11, "communication");
  for (int i = 0; i < 200; ++i) {
    Cluster c = random_cluster(draw);
    c.cpu = i % 2 == 0;
    if (i % 3 == 0) c.intra.start_us = c.intra.hop_us = c.inter.start_us = c.inter.hop_us = 0;
    if (i % 5 == 0) c.collectives = {{CommOp::all_reduce, 4, 4, 1000, 1e-4}};
    const GroupShape group{static_cast<int>(draw.one_of<int64_t>({2, 4, 16})),
                           static_cast<int>(draw.one_of<int64_t>({1, 2, 4}))};
    for (const CommOp op : {CommOp::all_reduce, CommOp::reduce_scatter, CommOp::all_gather, CommOp::broadcast,
                            CommOp::reduce, CommOp::all_to_all, CommOp::send, CommOp::shift})
      for (const int64_t elements : {16, 4096, 1 << 24})
        EXPECT_GT(collective_time(c, group, op, DType::f32, elements).total(), 0)
            << name_of(op) << " of " << elements << " over " << group.ranks << " ranks, " << group.per_node
            << " per node";
  }
}

// Per-layer layouts by sharding spec, over any axes, cost at most what each named strategy costs with the same replicas
// and micro-batches.
TEST(Properties, LayoutsBySpecAreNeverEstimatedSlowerThanNamedOnes) {
  RouteShares routes;
  int compared = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Draws draw(seed, "properties");
    const Cluster cluster = random_cluster(draw);
    const int64_t devices = draw.one_of<int64_t>({2, 4, 8}), micro = draw.one_of<int64_t>({8, 16});
    Config config = model(draw.one_of<int64_t>({1, 6, 24}), 16, draw.one_of<int64_t>({256, 1024, 4096}),
                          draw.one_of<int64_t>({64, 512}), 16,
                          {"parallel.data=1", "parallel.stages=1", format("train.micro_batch={}", micro)});
    std::string broken;
    double named = 1e300;
    std::string of;
    for (const Config& each : config::enumerate_layouts(config, devices, broken)) {
      if (config::needs_spec(each)) continue;
      const sharding::ModelSharding layout = config::sharding_of(each);
      const double seconds = LayerCosts(cluster, each, 1024, DType::f32, layout, routes).step_seconds(layout);
      if (seconds < named) of = format("{} {}", name_of(each.parallel.strategy), config::layout_text(each));
      named = std::min(named, seconds);
    }
    ASSERT_LT(named, 1e300) << broken;
    config.parallel.strategy = config::StrategyName::autoddl;
    double tags = 1e300;
    for (const std::vector<int64_t>& extents : config::axis_lists(devices, 1)) {
      config.parallel.axes = extents;
      LayerCosts costs(cluster, config, 1024, DType::f32, config::sharding_of(config), routes);
      for (const sharding::ModelSharding& found : costs.best(1e18)) tags = std::min(tags, costs.step_seconds(found));
    }
    EXPECT_LE(tags, named * (1 + 1e-9)) << "seed " << seed << ": " << of << " on " << devices << " devices";
    ++compared;
  }
  EXPECT_EQ(compared, 100);
}

// Samples of an all-reduce within a node of A100 (vTrain, 2024), in microseconds; the constants of a100-80gb.toml.
TEST(Properties, RingsAreFittedToTheirSamples) {
  struct Sample {
    int ranks;
    double small_us, large_us, gb_per_s;
  };
  for (const Sample& s : {Sample{2, 131.9, 5442.8, 199}, {4, 179.6, 7259.4, 224}, {8, 232.4, 8193.0, 232}}) {
    const double rate = fitted_rate({CommOp::all_reduce, s.ranks, s.ranks, 16.0 * (1 << 20), s.small_us * 1e-6},
                                    {CommOp::all_reduce, s.ranks, s.ranks, 1024.0 * (1 << 20), s.large_us * 1e-6});
    EXPECT_NEAR(rate * 1e-9, s.gb_per_s, 1) << s.ranks;
  }
}

TEST(Properties, MoreRanksOfAReplicaHoldFewerWeightsEach) {
  const Cluster cluster = tests::cluster_file("laptop-2core");
  const auto weights = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> all = {"parallel.data=1", "train.micro_batch=16"};
    all.insert(all.end(), sets.begin(), sets.end());
    return price_config(model(3, 16, 256, 64, 16, all), 1024, cluster).plan.memory.at("weights");
  };
  int64_t before = INT64_MAX;
  for (const int64_t t : {1, 2, 4, 8}) {
    const int64_t now = weights({format("parallel.tensor={}", t)});
    EXPECT_LE(now, before) << "tensor " << t;
    before = now;
  }
  before = weights({});
  for (const int64_t q : {2, 4}) {
    const int64_t now = weights({"parallel.strategy=optimus-2d", format("parallel.mesh=[{}, {}]", q, q)});
    EXPECT_LE(now, before) << "mesh " << q;
    before = now;
  }
  std::map<int64_t, std::pair<int64_t, int64_t>> of_grids;  // least and most by ranks
  for (const int64_t x : {1, 2, 4})
    for (const int64_t y : {1, 2, 4})
      for (const int64_t z : {1, 2, 4}) {
        const int64_t now = weights({"parallel.strategy=axonn-4d", format("parallel.grid=[{}, {}, {}]", x, y, z)});
        auto& [least, most] = of_grids.try_emplace(x * y * z, now, now).first->second;
        least = std::min(least, now);
        most = std::max(most, now);
      }
  int64_t least_before = INT64_MAX;
  for (const auto& [ranks, range] : of_grids) {
    EXPECT_LE(range.second, least_before) << ranks << " ranks";
    least_before = range.first;
  }
}

TEST(Properties, EveryStrategySharesOutTheSameProducts) {
  Cluster flat;
  flat.name = "flat";
  flat.devices_per_node = 16;
  flat.memory_bytes = 1e15;
  flat.memory_rate = 1e30;
  flat.peaks = {{DType::f32, 1e12}};
  flat.intra = {.gb_per_s = 1e18};
  std::string broken;
  double products = 0;
  int compared = 0;
  for (const Config& config :
       config::enumerate_layouts(model(2, 16, 256, 64, 16, {"train.micro_batch=16", "parallel.data=1"}), 4, broken)) {
    if (config::needs_spec(config)) continue;
    const PlannedRun run = price_config(config, 1024, flat);
    if (products == 0) products = run.time.products;
    EXPECT_NEAR(run.time.products, products, 1e-9 * products) << run.strategy << " " << run.layout;
    EXPECT_NEAR(run.time.exposed(), 0, 1e-9 * products);
    ++compared;
  }
  EXPECT_GE(compared, 8);
}

}  // namespace
}  // namespace trainer::plan
