// The planner compared with the trainer (bytes, memory and the order of layouts) and with published measurements.
#include "plan/planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "config/layouts.h"
#include "config/load.h"
#include "config/sharding_spec.h"
#include "plan/obstacles.h"
#include "plan/plan_text.h"
#include "rigs/cluster_files.h"
#include "rigs/messages.h"

namespace trainer::plan {
namespace {

using config::Config;
using tests::cluster_file;

Config model(const std::string& text, const std::vector<std::string>& sets = {}) {
  return config::load_text(text, "test.toml", sets, {.files = false, .plans = true});
}

/// A small GPT-2 whose extents divide by 2 and 4.
Config small(const std::vector<std::string>& sets = {}) {
  return model(R"([model]
n_layer = 4
n_head = 16
d_model = 256
d_ff = 1024
seq_len = 64
vocab_multiple = 512
[data]
vocab_size = 1000
[train]
global_batch = 32
[precision]
compute = "fp32"
)",
               sets);
}

Plan planned(const Config& config, int64_t devices, const Cluster& cluster) {
  return plan_layouts({.config = config, .vocab = config.data.vocab_size, .devices = devices, .threads = 1}, cluster);
}

Cluster without_latency(Cluster c) {
  c.operator_seconds = 0;
  for (Link* link : {&c.intra, &c.inter}) link->start_us = link->hop_us = 0;
  return c;
}

TEST(Planner, RefusesNodesWithoutALinkBetweenThem) {
  Cluster cluster = cluster_file("laptop-2core");
  cluster.measured = true;
  cluster.collectives = {{CommOp::all_reduce, 2, 2, 1e6, 1e-3}};  // within one node, as in profiles
  const Config config = small({"parallel.strategy=megatron-1d"});
  EXPECT_FALSE(planned(config, 2, cluster).runs.empty());
  tests::expect_error(Code::config, {"[inter] is missing", "measured 2", "for 4 devices", "--devices"},
                      [&] { planned(config, 4, cluster); });
  cluster.inter = {.gb_per_s = 1};
  EXPECT_FALSE(planned(config, 4, cluster).runs.empty());
}

TEST(Planner, PredictsBytesAndMemoryOfAWholeRunFromAFewLayers) {
  const Cluster cluster = cluster_file("laptop-2core");
  std::string broken;
  int compared = 0;
  // In the second model, the head needs the most memory with few layers, and the gradients with all.
  const std::pair<const char*, int64_t> models[] = {{"model.n_layer=7", 1000}, {"model.n_layer=24", 8000}};
  for (const auto& [layers, vocab] : models)
    for (Config config : config::enumerate_layouts(small({layers, "parallel.stages=1"}), 8, broken)) {
      if (config.train.micro_batch != 8 && config.train.micro_batch != 4) continue;
      if (config::needs_spec(config)) continue;
      for (const char* recompute : {"none", "selective", "full"}) {
        config.train.recompute = recompute == std::string("none")        ? config::Recompute::none
                                 : recompute == std::string("selective") ? config::Recompute::selective
                                                                         : config::Recompute::full;
        if (compared % 5 == 0) config.parallel.zero_stage = 1 - config.parallel.zero_stage;
        config.data.tokenizer = compared % 2 == 0 ? "train" : "";  // the run writes samples, or does not
        const PlannedRun run = price_config(config, vocab, cluster);
        Machine machine;
        machine.ranks = 8;
        machine.isa = device::Isa::avx2;
        const RunPlan whole = plan_run(config, vocab, machine, true);
        EXPECT_EQ(run.plan.comm_bytes, whole.comm_bytes) << run.strategy << " " << run.layout;
        EXPECT_EQ(run.plan.parameters, whole.parameters);
        EXPECT_EQ(whole.memory.contains("kv_cache"), compared % 2 == 0);
        for (const auto& [category, bytes] : whole.memory) {
          const double tolerance = category == "activations" ? 0.05 : category == "host" ? 0.05 : 0;
          EXPECT_NEAR(static_cast<double>(run.plan.memory.at(category)), static_cast<double>(bytes),
                      tolerance * static_cast<double>(bytes))
              << category << " of " << run.strategy << " " << run.layout;
        }
        ++compared;
      }
    }
  EXPECT_GE(compared, 80);
}

TEST(Planner, PartsAddUpAndAreNeverNegative) {
  const Plan plan = planned(small(), 8, cluster_file("frontera-rtx"));
  ASSERT_GE(plan.runs.size(), 4u);
  for (const PlannedRun& run : plan.runs) {
    double sum = 0;
    for (const auto& [name, seconds] : parts(run.time)) {
      EXPECT_GE(seconds, -1e-12) << name << " of " << run.layout;
      sum += seconds;
    }
    EXPECT_NEAR(sum, run.time.total(), 1e-9 * sum);
    for (const auto& [axis, operations] : run.plan.comm_bytes)
      for (const auto& [operation, bytes] : operations)
        EXPECT_EQ(run.time.comm.at(axis).busy > 0, bytes > 0) << axis << " of " << run.layout;
    EXPECT_GT(run.mfu, 0);
    EXPECT_LT(run.mfu, 1);
  }
  for (size_t i = 1; i < plan.runs.size(); ++i) EXPECT_LE(plan.runs[i - 1].time.total(), plan.runs[i].time.total());
}

TEST(Planner, OneRankDoesNotCommunicateAndReplicasOnlySumGradients) {
  const Cluster cluster = cluster_file("laptop-2core");
  const Plan single = planned(small(), 1, cluster);
  ASSERT_FALSE(single.runs.empty());
  EXPECT_TRUE(single.runs.front().time.comm.empty());
  const Plan two = planned(small({"parallel.data=2"}), 2, cluster);
  for (const auto& [axis, comm] : two.runs.front().time.comm) EXPECT_TRUE(axis == "data" || axis == "control") << axis;
}

TEST(Planner, FasterHardwareIsNeverSlower) {
  const Cluster base = cluster_file("frontera-rtx");
  std::string broken;
  for (const Config& config :
       config::enumerate_layouts(small({"train.micro_batch=4", "parallel.stages=1"}), 8, broken)) {
    if (config::needs_spec(config)) continue;
    const auto seconds = [&](const auto& change) {
      Cluster c = base;
      change(c);
      return price_config(config, 1000, c).time.total();
    };
    const double now = seconds([](Cluster&) {}), slack = 1e-9 * now;
    EXPECT_LE(seconds([](Cluster& c) { c.intra.gb_per_s *= 2; }), now + slack);
    EXPECT_LE(seconds([](Cluster& c) { c.inter.gb_per_s *= 2; }), now + slack);
    EXPECT_LE(seconds([](Cluster& c) { c.peaks[DType::f32] *= 2; }), now + slack);
    EXPECT_LE(seconds([](Cluster& c) { c.memory_rate *= 2; }), now + slack);
    EXPECT_GE(seconds([](Cluster& c) { c.intra.start_us += 50; }), now - slack);
    EXPECT_GE(seconds([](Cluster& c) { c.inter.hop_us += 50; }), now - slack);
    EXPECT_GE(seconds([](Cluster& c) { c.operator_seconds *= 2; }), now - slack);
    // Everything twice as fast and no latency: half the time.
    const double bare = price_config(config, 1000, without_latency(base)).time.total();
    Cluster twice = without_latency(base);
    twice.peaks[DType::f32] *= 2;
    twice.memory_rate *= 2;
    twice.intra.gb_per_s *= 2;
    twice.inter.gb_per_s *= 2;
    EXPECT_NEAR(price_config(config, 1000, twice).time.total(), bare / 2, 1e-9 * bare);
  }
}

TEST(Planner, RecomputationTradesTimeForMemory) {
  Config config = small({"parallel.tensor=4", "parallel.data=2", "train.micro_batch=8"});
  const Cluster cluster = cluster_file("frontera-rtx");
  double time = 0, memory = 1e30;
  using config::Recompute;
  for (const auto& [recompute, layers] :
       {std::pair{Recompute::none, 0}, {Recompute::selective, 0}, {Recompute::selective, 1}, {Recompute::full, 0}}) {
    config.train.recompute = recompute;
    config.train.recompute_layers = layers;
    const PlannedRun run = price_config(config, 1000, cluster);
    EXPECT_GE(run.time.total(), time);
    EXPECT_LE(static_cast<double>(run.plan.total), memory);
    time = run.time.total();
    memory = static_cast<double>(run.plan.total);
  }
}

TEST(Planner, KeepsTheNumberOfRecomputedLayersWhereItHasAnEffect) {
  const std::vector<plan::Choice> all =
      plan::choices(small({"train.recompute_layers=1"}), cluster_file("frontera-rtx"));
  EXPECT_GE(all.size(), 6u);
  for (const Choice& choice : all)
    EXPECT_EQ(choice.recompute_layers, choice.recompute == config::Recompute::full ? 0 : 1);
}

// If offload.optimizer is not set, less memory may list more layouts: offload is tried where memory is short. It may
// also list more sharding specs, those found for each size, so only named layouts are counted.
TEST(Planner, MoreMemoryNeverMakesTheBestSlower) {
  Cluster cluster = cluster_file("frontera-rtx");
  double best = 1e30;
  size_t fitting = 0;
  for (const double mib : {12.0, 20.0, 40.0, 80.0, 400.0}) {
    cluster.memory_bytes = mib * (1 << 20);
    const Plan plan = planned(small({"train.micro_batch=8", "offload.optimizer=none"}), 8, cluster);
    const double now = plan.runs.empty() ? 1e30 : plan.runs.front().time.total();
    EXPECT_LE(now, best * (1 + 1e-9)) << mib;
    const size_t named = static_cast<size_t>(std::ranges::count_if(plan.runs, [](const PlannedRun& run) {
      return run.config.parallel.strategy != config::StrategyName::autoddl;
    }));
    EXPECT_GE(named, fitting);
    best = now;
    fitting = named;
  }
  EXPECT_LT(best, 1e30);
}

TEST(Planner, ReportsWhyNothingFits) {
  Cluster cluster = cluster_file("frontera-rtx");
  cluster.memory_bytes = 1 << 20;
  const Plan plan = planned(small(), 4, cluster);
  ASSERT_TRUE(plan.runs.empty());
  tests::expect_parts(why_nothing_fits(plan), {"no layout fits", "use devices with"});
  tests::expect_error(Code::config, {"7 "}, [] {
    planned(small({"parallel.tensor=7", "parallel.strategy=megatron-1d"}), 7, cluster_file("laptop-2core"));
  });
}

// 32 sequences, 16 heads, blocks of 512 rows of the vocabulary: other numbers than powers of two have few layouts.
TEST(Planner, NamesTheNearestNumbersOfDevicesThatHaveALayout) {
  const auto nearest = [](const std::vector<std::string>& sets, int64_t devices) {
    return config::nearest_device_counts(small(sets), devices);
  };
  using Counts = std::vector<int64_t>;
  const std::string megatron = "parallel.strategy=megatron-1d", one = "parallel.stages=1";
  EXPECT_EQ(nearest({megatron, one}, 7), (Counts{4, 8}));
  EXPECT_EQ(nearest({megatron}, 7), (Counts{6, 8})) << "three stages of two ranks";
  EXPECT_EQ(nearest({megatron, one}, 500), (Counts{512}));  // 32 replicas of 16 ranks, the most there are
  EXPECT_EQ(nearest({megatron, one}, 700), Counts{});
  EXPECT_EQ(nearest({"parallel.strategy=optimus-2d", "parallel.data=1", one}, 15), (Counts{8, 16}));
  for (const int64_t devices : nearest({}, 7))
    EXPECT_FALSE(planned(small(), devices, cluster_file("h100")).runs.empty());
}

TEST(Planner, NamesTheNearestBatchesThatHaveALayout) {
  using Batches = std::vector<std::string>;
  const auto nearest = [](const std::vector<std::string>& sets, int64_t devices) {
    return config::nearest_batches(small(sets), devices);
  };
  const std::string megatron = "parallel.strategy=megatron-1d";
  EXPECT_EQ(nearest({megatron, "parallel.data=8", "train.global_batch=30"}, 8), (Batches{"global_batch = 24 or 32"}));
  EXPECT_EQ(nearest({megatron, "parallel.data=8", "train.global_batch=4"}, 8), (Batches{"global_batch = 8"}));
  EXPECT_EQ(nearest({megatron, "parallel.data=4", "train.global_batch=24", "train.micro_batch=8"}, 4),
            (Batches{"global_batch = 32", "micro_batch = 6"}));
  EXPECT_EQ(nearest({megatron, "parallel.data=1"}, 7), Batches{});  // heads do not divide, whatever the batch
}

TEST(Planner, ReportsLayoutsThatCannotBeBuilt) {
  Obstacles obstacles;
  EXPECT_NO_THROW(obstacles.throw_first());
  for (const char* layout : {"parallel.tensor=2", "parallel.tensor=4"}) {
    PlannedRun run = plan::planned(small({layout}));
    EXPECT_TRUE(Obstacles::attempt(run, [](PlannedRun&) {}));
    EXPECT_FALSE(Obstacles::attempt(run, [](PlannedRun&) { TRAINER_CHECK(1 < 0, "axes of the mesh are missing"); }));
    obstacles.count(run);
  }
  tests::expect_parts(obstacles.text(),
                      {"2 layouts", "cannot be built", "a bug", "tensor 2", "axes of the mesh are missing"});
  tests::expect_error(Code::internal, {"axes of the mesh are missing"}, [&] { obstacles.throw_first(); });
}

// The search finds a layout by sharding specs that is no slower than the named strategies for the same batches.
TEST(Planner, FindsSpecsNoSlowerThanTheNamedStrategies) {
  const Cluster cluster = cluster_file("frontera-rtx");
  for (const int64_t devices : {4, 8, 16}) {
    const auto runs = [&](const std::string& strategy) {
      return planned(small({"parallel.data=1", "train.micro_batch=32", strategy}), devices, cluster).runs;
    };
    const std::vector<PlannedRun> tables = runs("parallel.strategy=autoddl");
    for (const char* named : {"megatron-1d", "optimus-2d", "axonn-4d"})
      for (const PlannedRun& run : runs(format("parallel.strategy={}", named)))
        EXPECT_LE(tables.front().time.total(), run.time.total() * 1.02) << run.strategy << " " << run.layout;
    EXPECT_GT(tables.size(), 1u) << devices << " devices";
  }
}

TEST(Planner, ListsEqualLayoutsOnceWithTheirOtherNames) {
  const auto as = [](const std::vector<std::string>& sets) {
    std::vector<std::string> all = {"train.micro_batch=32", "parallel.data=1"};
    all.insert(all.end(), sets.begin(), sets.end());
    return small(all);
  };
  using Names = std::vector<std::string>;
  const Config megatron = as({"parallel.tensor=4", "parallel.sequence_parallel=false"}),
               axonn = as({"parallel.strategy=axonn-4d", "parallel.grid=[4, 1, 1]"});
  EXPECT_EQ(identity(megatron), identity(axonn));
  EXPECT_EQ(other_names(megatron), Names{"axonn-4d grid = [4, 1, 1]"});
  EXPECT_EQ(other_names(axonn), Names{"megatron-1d tensor = 4"});
  const Names replicas = other_names(as({"parallel.strategy=fsdp", "parallel.shards=1", "parallel.data=4"}));
  EXPECT_EQ(replicas, (Names{"megatron-1d tensor = 1", "axonn-4d grid = [1, 1, 1]"})) << "with any sequence_parallel";
  EXPECT_NE(identity(as({"parallel.tensor=4"})), identity(megatron)) << "sequence parallelism is another layout";
  Config tables = megatron;  // two axes that split the same dimensions count as one
  config::set_tables(tables, config::sharding_of(megatron));
  tables.parallel.axes = {2, 2};
  for (config::LayerSpec& spec : tables.parallel.layer)
    for (const config::SpecMember& member : config::kSpecMembers)
      if (member.letters != nullptr) spec.*member.member += spec.*member.member;
  tables.parallel.head += tables.parallel.head;
  tables.parallel.table += tables.parallel.table;
  EXPECT_EQ(identity(tables), identity(megatron));
  EXPECT_EQ(other_names(tables), (Names{"megatron-1d tensor = 4", "axonn-4d grid = [4, 1, 1]"}));
  for (const std::string axes : {"x", "xy"}) {
    config::set_tables(tables, config::sharding_of(as({"parallel.strategy=axonn-4d", "parallel.grid=[2, 2, 1]",
                                                       "parallel.vocab_axes=" + axes})));
    EXPECT_EQ(other_names(tables), Names{"axonn-4d grid = [2, 2, 1], vocab_axes = " + axes});
  }
  std::set<std::string> shown;
  for (const PlannedRun& run : planned(small(), 8, cluster_file("frontera-rtx")).runs)
    EXPECT_TRUE(shown.insert(identity(run.config)).second) << run.strategy << " " << run.layout;
  EXPECT_GT(shown.size(), 10u);
}

TEST(Planner, TriesBf16GradientsOnRequestOnly) {
  Config config =
      small({"precision.compute=bf16", "parallel.strategy=axonn-4d", "parallel.grid=[1, 1, 8]", "parallel.data=1"});
  PlanRequest request{.config = config, .vocab = 1000, .devices = 8, .threads = 1};
  const Cluster cluster = cluster_file("ethernet-10g");
  const Plan exact = plan_layouts(request, cluster);
  for (const PlannedRun& run : exact.runs) EXPECT_EQ(run.config.parallel.rs_dtype, DType::f32) << run.layout;
  EXPECT_TRUE(exact.spares_bf16_gradients);
  tests::expect_parts(to_text(exact, cluster, 5), {"rs_dtype = \"bf16\"", "--free parallel.rs_dtype"});
  request.bf16_gradients = true;
  const Plan rounded = plan_layouts(request, cluster);
  const PlannedRun &best = rounded.runs.front(), &before = exact.runs.front();
  EXPECT_EQ(best.config.parallel.rs_dtype, DType::bf16);
  EXPECT_FALSE(rounded.spares_bf16_gradients);
  EXPECT_LT(best.time.total(), before.time.total());
  const auto of_gradients = [](const PlannedRun& run) { return run.plan.comm_bytes.at("z").at("reduce_scatter"); };
  EXPECT_LT(of_gradients(best), 0.6 * static_cast<double>(of_gradients(before)));
  request.config = small(
      {"precision.compute=bf16", "parallel.strategy=axonn-4d", "parallel.grid=[1, 1, 8]", "parallel.rs_dtype=fp32"});
  request.bf16_gradients = false;
  EXPECT_FALSE(plan_layouts(request, cluster).spares_bf16_gradients) << "it is set";
}

TEST(Planner, TriesBothStationaryMatrices) {
  const Cluster cluster = cluster_file("perlmutter");
  const auto stationary = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]", "parallel.data=1",
                                     "train.micro_batch=8"};
    sets.insert(sets.end(), more.begin(), more.end());
    std::set<config::Stationary> found;
    for (const PlannedRun& run : planned(small(sets), 4, cluster).runs) found.insert(run.config.parallel.stationary);
    return found;
  };
  EXPECT_EQ(stationary({}), (std::set{config::Stationary::automatic, config::Stationary::paper}));
  EXPECT_EQ(stationary({"parallel.stationary=paper"}), std::set{config::Stationary::paper});
}

// A line of the text and a list of the document name everything that the search leaves out.
TEST(Planner, NamesWhatItDidNotTry) {
  const Cluster cluster = cluster_file("perlmutter");
  const Plan wide = planned(small(), 16, cluster);
  const std::string text = to_text(wide, cluster, 3);
  ASSERT_FALSE(wide.left_out.empty());
  tests::expect_parts(fmt::format("{}", fmt::join(wide.left_out, "\n")),
                      {"sharding specs for ", "combinations of stages, data and micro_batch", "with slower estimates"});
  for (const std::string& part : wide.left_out) tests::expect_parts(text, {"not tried", part});
  const Plan narrow =
      planned(small({"parallel.strategy=megatron-1d", "parallel.data=4", "train.micro_batch=8"}), 4, cluster);
  EXPECT_TRUE(narrow.left_out.empty()) << narrow.left_out.front();
  EXPECT_EQ(to_text(narrow, cluster, 3).find("not tried"), std::string::npos);
}

TEST(Planner, KeepsGivenExtents) {
  const Cluster cluster = cluster_file("frontera-rtx");
  for (const PlannedRun& run : planned(small({"parallel.strategy=autoddl", "parallel.axes=[8]"}), 8, cluster).runs)
    EXPECT_EQ(run.config.parallel.axes, std::vector<int64_t>{8}) << run.layout;
  const Plan four =
      planned(small({"parallel.strategy=autoddl", "parallel.axes=[2, 2, 2, 2]", "train.micro_batch=32"}), 16, cluster);
  ASSERT_FALSE(four.runs.empty());
  EXPECT_EQ(four.runs.front().config.parallel.axes, (std::vector<int64_t>{2, 2, 2, 2}));
  const Plan one = planned(
      small({"parallel.strategy=megatron-1d", "parallel.tensor=1", "parallel.sequence_parallel=false"}), 4, cluster);
  ASSERT_FALSE(one.runs.empty());
  EXPECT_EQ(one.runs.front().config.parallel.data, 4);
  tests::expect_error(Code::config, {"axes = [4, 2] requires 8 ranks per replica, but 4 devices"}, [&] {
    planned(small({"parallel.strategy=autoddl", "parallel.axes=[4, 2]"}), 4, cluster);
  });
}

TEST(Planner, TriesToKeepGatheredMatricesOfSpecs) {
  Config c = small({"train.micro_batch=32"});
  c.parallel.strategy = config::StrategyName::autoddl;
  c.parallel.axes = {2, 2};
  c.parallel.data = 1;
  c.parallel.layer = {
      {.stream = "rc", .attention = "rc", .hidden = "rc", .qkv = "fc", .out = "fc", .up = "fc", .down = "fk"}};
  ASSERT_TRUE(config::layout_fits(c));
  const std::vector<Config> kept = config::variants(c, 1);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept.front().parallel.cache_layers, 4);
  EXPECT_EQ(config::layout_text(kept.front()), "axes 2 x 2, cache_layers 4, data 1");
  const Cluster cluster = cluster_file("laptop-2core");
  const auto gathered = [&](const Config& config) {
    int64_t bytes = 0;
    for (const auto& [axis, operations] : price_config(config, 1000, cluster).plan.comm_bytes)
      if (const auto found = operations.find("all_gather"); found != operations.end()) bytes += found->second;
    return bytes;
  };
  EXPECT_LT(gathered(kept.front()), gathered(c));
  c.parallel.layer = {
      {.stream = "rr", .attention = "rr", .hidden = "rr", .qkv = "rr", .out = "rr", .up = "rr", .down = "rr"}};
  EXPECT_TRUE(config::variants(c, 1).empty()) << "nothing is gathered";
}

}  // namespace
}  // namespace trainer::plan
