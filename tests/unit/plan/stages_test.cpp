// The time, the memory and the search of layouts with pipeline stages.
#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "config/stages.h"
#include "config/text.h"
#include "plan/plan_text.h"
#include "plan/prediction.h"
#include "rigs/cluster_files.h"
#include "rigs/files.h"
#include "setup/offload_memory.h"

namespace trainer::plan {
namespace {

using config::Config;
using sharding::Stages;

StepTime seconds(double compute) {
  StepTime time;
  time.products = compute;
  return time;
}

/// Returns a stage with one forward and one backward time in all chunks.
StageTime stage(const Stages& stages, int64_t index, int64_t micro_batches, double forward, double backward,
                double rest) {
  StageTime time{.parts = {}, .rest = seconds(rest)};
  const sharding::ActionLists lists = lists_of(stages, micro_batches);
  for (const sharding::Action& action : lists[static_cast<size_t>(index)]) {
    const sharding::ActionKind kind = kind_of(action, micro_batches);
    auto part = std::ranges::find(time.parts, kind, &StageTime::Part::kind);
    const double both =
        (action.has(sharding::kForward) ? forward : 0) + (action.has(sharding::kBackward) ? backward : 0);
    if (part == time.parts.end()) part = time.parts.insert(part, {kind, 0, seconds(both)});
    ++part->count;
  }
  return time;
}

// Narayanan et al. (2021): (stages − 1) / chunks turns of waiting for m turns of work.
TEST(TimeOfStages, FollowsTheClosedForm) {
  constexpr double kForward = 1e-3, kBackward = 2e-3, kRest = 5e-3, kMessage = 1e-5;
  for (const Stages& stages : {Stages{.count = 2}, Stages{.count = 4}, Stages{.count = 4, .chunks = 2}})
    for (const int64_t m : {4, 8, 16}) {
      const auto chunks = static_cast<double>(stages.chunks), turns = static_cast<double>(stages.count - 1) / chunks;
      std::vector<StageTime> times;
      for (int64_t s = 0; s < stages.count; ++s)
        times.push_back(stage(stages, s, m, kForward / chunks, kBackward / chunks, kRest));
      std::vector<const StageTime*> by_stage;
      for (const StageTime& time : times) by_stage.push_back(&time);
      const double work = static_cast<double>(m) * (kForward + kBackward), wait = turns * (kForward + kBackward);
      StepTime step = time_of_stages(by_stage, stages, m, {});
      EXPECT_NEAR(step.total(), work + wait + kRest, 1e-9);
      EXPECT_NEAR(step.products, work + kRest, 1e-9);
      EXPECT_NEAR(step.comm.at("stage").exposed, wait, 1e-9);
      EXPECT_NEAR(step.bubble, wait / (work + wait + kRest), 1e-9);
      // Each hop of the first micro-batch to the last stage and back is exposed once.
      step = time_of_stages(by_stage, stages, m, {.fixed = kMessage});
      EXPECT_GE(step.total(), work + wait + kRest + 2 * static_cast<double>(stages.count - 1) * kMessage - 1e-9);
      EXPECT_NEAR(step.comm.at("stage").busy, static_cast<double>(m * (2 * stages.chunks - 1)) * kMessage, 1e-9);
      // The first stage is the last to end, so only its update counts if it takes longest.
      times.back().rest = seconds(kRest / 2);
      EXPECT_NEAR(time_of_stages(by_stage, stages, m, {}).total(), work + wait + kRest, 1e-9);
      times.back().rest = seconds(1);  // the last stage ends all its backward passes but one chain earlier
      EXPECT_NEAR(time_of_stages(by_stage, stages, m, {}).total(),
                  1 + work + (static_cast<double>(stages.count - 1) * kForward) / chunks, 1e-9);
    }
}

Config model(const std::vector<std::string>& sets) {
  return config::load_text(R"([model]
n_layer = 12
n_head = 8
d_model = 256
seq_len = 128
vocab_multiple = 256
[data]
vocab_size = 2048
[train]
global_batch = 32
micro_batch = 2
[precision]
compute = "fp32"
)",
                           "test.toml", sets, {.files = false, .plans = true});
}
/// Returns a run of two replicas.
PlannedRun priced(Config config, Depth depth) {
  static const Cluster cluster = tests::cluster_file("frontera-rtx");
  config.parallel.data = 2;
  PlannedRun run = planned(config);
  Pricer(cluster, config, config.data.vocab_size, 2 * config::ranks_of_replica(config)).price(run, depth);
  return run;
}

const std::vector<std::vector<std::string>> kLayouts = {
    {"parallel.stages=2"},
    {"parallel.stages=4", "parallel.tensor=2", "model.tie_embeddings=false"},
    {"parallel.stages=2", "parallel.chunks=2", "train.recompute=full"},
    {"parallel.stages=4", "parallel.strategy=fsdp", "parallel.shards=2", "parallel.cache_layers=12"},
    {"parallel.stages=3", "parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]"},
    {"parallel.stages=2", "optim.name=muon", "train.recompute=selective"}};

TEST(PricedStages, FollowFromAFewLayers) {
  for (const std::vector<std::string>& sets : kLayouts) {
    const Config config = model(sets);
    const PlannedRun few = priced(config, Depth::few), all = priced(config, Depth::all);
    EXPECT_FALSE(few.whole) << few.layout;
    EXPECT_NEAR(few.time.total() / all.time.total(), 1, .01) << few.layout;
    EXPECT_NEAR(few.time.bubble, all.time.bubble, .01) << few.layout;
    EXPECT_NEAR(static_cast<double>(few.plan.total) / static_cast<double>(all.plan.total), 1, .03) << few.layout;
    EXPECT_EQ(few.plan.parameters, all.plan.parameters) << few.layout;
  }
}

TEST(PricedStages, NeedTheMemoryOfTheLargest) {
  for (const std::vector<std::string>& sets : kLayouts) {
    const PlannedRun run = priced(model(sets), Depth::all);
    Machine machine;
    machine.isa = device::Isa::avx2;
    machine.compute = DType::f32;
    machine.ranks = static_cast<int>(2 * config::ranks_of_replica(run.config));
    int64_t most = 0;
    for (const RunPlan& plan : setup::plan_stages(run.config, 2048, machine))
      most = std::max(most, setup::memory_of(plan).device);
    EXPECT_EQ(run.plan.total, most) << run.layout;
  }
}

Plan plan_of(const Config& config, int64_t devices, const Cluster& cluster) {
  return plan_layouts({.config = config, .vocab = config.data.vocab_size, .devices = devices, .threads = 1, .shown = 3},
                      cluster);
}

TEST(PlannedStages, KeepGivenKeysAndHaveEnoughMicroBatches) {
  std::string broken;
  std::set<int64_t> counts;
  for (const Config& config : config::enumerate_layouts(model({}), 24, broken)) {
    counts.insert(config.parallel.stages);
    EXPECT_EQ(config::ranks_of_replica(config) * config.parallel.data, 24);
    EXPECT_GE(config.train.global_batch, config.parallel.stages * config.parallel.data * config.train.micro_batch);
  }
  EXPECT_EQ(counts, (std::set<int64_t>{1, 2, 3, 4, 6, 8, 12}));
  for (const Config& config :
       config::enumerate_layouts(model({"parallel.stages=4", "parallel.chunks=2"}), 24, broken)) {
    EXPECT_EQ(config.parallel.stages, 4);
    EXPECT_EQ(config.parallel.chunks, 2);
    EXPECT_EQ(config.train.global_batch / (config.parallel.data * config.train.micro_batch) % 4, 0);
  }
  EXPECT_TRUE(config::enumerate_layouts(model({"parallel.stages=5"}), 24, broken).empty());
}

/// Two hosts with one device each, joined by 100 Mbit/s.
Cluster slow_network() {
  Cluster cluster = tests::cluster_file("laptop-2core");
  cluster.devices_per_node = 1;
  cluster.inter = {.gb_per_s = .0125, .start_us = 100, .hop_us = 50};
  return cluster;
}

// Activations of two stages are a hundredth of the gradients that two replicas exchange.
TEST(PlannedStages, AreFasterThanReplicasOnASlowNetwork) {
  const Config config = model({"model.d_model=768", "model.tie_embeddings=false", "train.global_batch=4",
                               "train.micro_batch=1", "parallel.strategy=megatron-1d", "parallel.tensor=1"});
  const Plan plan = plan_of(config, 2, slow_network());
  ASSERT_GE(plan.runs.size(), 2u);
  const PlannedRun& best = plan.runs.front();
  EXPECT_EQ(best.config.parallel.stages, 2);
  EXPECT_GT(best.time.bubble, 0);
  EXPECT_EQ(best.plan.stage_totals.size(), 2u);
  const auto replicas =
      std::ranges::find(plan.runs, 1, [](const PlannedRun& run) { return run.config.parallel.stages; });
  ASSERT_NE(replicas, plan.runs.end());
  EXPECT_LT(best.time.total(), .5 * replicas->time.total());
  const std::string text = to_text(plan, slow_network(), 2);
  for (const char* part : {"bubble", "2 stages (1f1b", "head on the last; 4 micro-batches per step", "on stage "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(PlannedStages, AreEmittedWithTheirLayers) {
  const Config config = model({"parallel.stages=2", "parallel.strategy=megatron-1d"});
  const Cluster cluster = slow_network();
  const Plan plan = plan_of(config, 4, cluster);
  const PlannedRun& best = plan.runs.front();
  const std::string text = emitted(best, tests::cluster_file("laptop-2core"));
  const Config again = config::load_text(text, "emitted.toml", {}, {.files = false, .plans = true});
  EXPECT_EQ(again.parallel.stages, 2);
  EXPECT_EQ(again.parallel.chunks, best.config.parallel.chunks);
  EXPECT_EQ(again.parallel.stage_layers, best.config.parallel.stage_layers);
  const Plan second = plan_of(again, 4, cluster);
  EXPECT_EQ(second.runs.front().layout, best.layout);
  EXPECT_EQ(second.runs.front().time.total(), best.time.total());
  EXPECT_EQ(second.runs.front().plan.total, best.plan.total);
}

// The same prediction at the start of a run, on each rank.
TEST(PredictedStages, AreThoseOfThePlan) {
  const tests::TempFolder folder;
  std::string text = cluster_text(TRAINER_SOURCE_DIR "/configs/clusters/laptop-2core.toml");
  const std::string profile = tests::write(folder / "node.toml", text);
  Config config =
      model({"parallel.stages=4", "parallel.chunks=2", "optim.overlap=false", "hardware.profile=" + profile});
  config.parallel.data = 1;
  config::choose_stage_layers(config, 2048);
  const Cluster cluster = read_cluster(profile);
  PlannedRun run = planned(config);
  Pricer(cluster, config, 2048, 4).price(run, Depth::all);
  for (int rank = 0; rank < 4; ++rank) {
    Machine machine;
    machine.isa = device::Isa::avx2;
    machine.compute = DType::f32;
    machine.ranks = 4;
    machine.rank = rank;
    const RunPlan plan = plan_and_time(config, 2048, machine);
    EXPECT_NEAR(plan.step_seconds, run.time.total(), 1e-12);
    EXPECT_NEAR(plan.bubble, run.time.bubble, 1e-12);
    ASSERT_EQ(plan.stage_totals.size(), 4u);
    EXPECT_EQ(plan.total, plan.stage_totals[static_cast<size_t>(rank)]);
    EXPECT_EQ(std::ranges::max(plan.stage_totals), run.plan.total);
  }
}

}  // namespace
}  // namespace trainer::plan
