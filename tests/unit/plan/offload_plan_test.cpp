// Plans with the optimizer state on the host, and further variants of layouts.
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/layouts.h"
#include "config/load.h"
#include "plan/offload_time.h"
#include "plan/planner.h"
#include "rigs/cluster_files.h"
#include "setup/offload_memory.h"

namespace trainer::plan {
namespace {

using config::Config;
using config::OffloadOptimizer;
using tests::cluster_file;

Config small(const std::vector<std::string>& sets = {}) {
  return config::load_text(R"([model]
n_layer = 3
n_head = 16
d_model = 256
d_ff = 1024
seq_len = 64
vocab_multiple = 512
[data]
vocab_size = 512
[train]
global_batch = 32
micro_batch = 4
[offload]
subgroup = 100000
)",
                           "test.toml", sets, {.files = false});
}

const std::vector<std::string> kInterleaved = {"offload.optimizer=interleaved", "offload.gpu_fraction=1/2",
                                               "parallel.data=2"};

TEST(OffloadPlan, PriceIsThatOfTheEnginesUpdate) {
  const Cluster cluster = cluster_file("a100-80gb");
  const PlannedRun none = price_config(small({"parallel.data=2"}), 512, cluster);
  const PlannedRun run = price_config(small(kInterleaved), 512, cluster);
  ASSERT_TRUE(run.plan.offload);
  EXPECT_EQ(none.time.offload, 0);
  const OffloadWork& work = *run.plan.offload;
  EXPECT_GT(work.subgroups.size(), 20u);
  int64_t elements = 0;
  for (const offload::Subgroup& subgroup : work.subgroups) elements += subgroup.part.count;
  EXPECT_GE(elements, run.plan.parameters);
  const offload::Rates rates = offload_rates(cluster, work.sizes);
  EXPECT_EQ(rates.to_device, 24e9);
  const offload::Share share =
      offload::share_of(offload::residencies(work.placement, static_cast<int>(work.subgroups.size())), work.subgroups);
  const double update = offload::update_seconds(work.placement, work.subgroups, rates, work.sizes);
  EXPECT_GE(run.time.offload, update);
  EXPECT_LE(run.time.offload, update + static_cast<double>(4 * share.host) / rates.to_host);
  EXPECT_EQ(run.time.products, none.time.products);
  EXPECT_EQ(run.plan.comm_bytes, none.plan.comm_bytes);
}

TEST(OffloadPlan, OfADeepModelIsThatOfItsLayers) {
  const Cluster cluster = cluster_file("h100");
  for (const char* optimizer : {"cpu", "interleaved"}) {
    Config config = small({"model.n_layer=9", format("offload.optimizer={}", optimizer), "parallel.data=2"});
    const PlannedRun run = price_config(config, 512, cluster);  // recorded with two and three layers
    Machine machine;
    machine.ranks = 2;
    machine.isa = device::Isa::avx2;
    machine.compute = DType::bf16;
    const RunPlan whole = plan_run(config, 512, machine, true);
    const auto elements = [](const OffloadWork& work) {
      std::vector<int64_t> all;
      for (const offload::Subgroup& subgroup : work.subgroups) all.push_back(subgroup.part.count);
      return all;
    };
    EXPECT_EQ(elements(*run.plan.offload), elements(*whole.offload));
    EXPECT_EQ(memory_of(run.plan).host, memory_of(whole).host);
    EXPECT_EQ(offload_seconds(*run.plan.offload, cluster, 0), offload_seconds(*whole.offload, cluster, 0));
  }
}

TEST(OffloadPlan, FasterHostsAreNeverSlower) {
  const Cluster base = cluster_file("a100-80gb");
  for (const char* share : {"0", "1/2", "1", "auto"}) {
    const Config config =
        small({"offload.optimizer=interleaved", format("offload.gpu_fraction={}", share), "parallel.data=1"});
    const double now = price_config(config, 512, base).time.total();
    for (double Host::*rate : {&Host::memory_rate, &Host::to_device, &Host::to_host, &Host::updates}) {
      Cluster faster = base;
      faster.host.*rate *= 2;
      EXPECT_LE(price_config(config, 512, faster).time.total(), now * (1 + 1e-9)) << share;
    }
  }
}

// Moving state to the host frees device memory but costs time; both grow as fewer subgroups are resident.
TEST(OffloadPlan, TradesDeviceMemoryForTime) {
  const Cluster cluster = cluster_file("a100-80gb");
  double time = 0;
  int64_t device = INT64_MAX, host = 0;
  for (const int64_t resident : {24, 12, 6, 0}) {
    const PlannedRun run =
        price_config(small({"offload.optimizer=interleaved", "offload.gpu_fraction=0", "offload.slots=1",
                            format("offload.resident={}", resident), "parallel.data=2"}),
                     512, cluster);
    EXPECT_LE(memory_of(run.plan).device, device) << resident;
    EXPECT_GE(memory_of(run.plan).host, host);
    EXPECT_GE(run.time.offload, time);
    device = memory_of(run.plan).device;
    host = memory_of(run.plan).host;
    time = run.time.offload;
  }
  EXPECT_LT(device, memory_of(price_config(small({"parallel.data=2"}), 512, cluster).plan).device);
}

TEST(OffloadPlan, IsChosenWhereNothingFitsWithout) {
  Cluster cluster = cluster_file("a100-80gb");
  const auto planned = [&](double mib, const std::vector<std::string>& sets = {}) {
    cluster.memory_bytes = mib * (1 << 20);
    return plan_layouts({.config = small(sets), .vocab = 512, .devices = 2, .threads = 1}, cluster);
  };
  const Plan roomy = planned(400);
  ASSERT_FALSE(roomy.runs.empty());
  for (const PlannedRun& run : roomy.runs) EXPECT_EQ(run.config.offload.optimizer, OffloadOptimizer::none);
  int64_t smallest = INT64_MAX;
  for (const PlannedRun& run : planned(1, {"offload.optimizer=none"}).too_large)
    smallest = std::min(smallest, run.plan.total);
  // Less memory than the smallest layout requires with its state on the device.
  const double tight = 0.95 * static_cast<double>(smallest) / 0.92 / (1 << 20);
  const Plan plan = planned(tight);
  ASSERT_FALSE(plan.runs.empty());
  for (const PlannedRun& run : plan.runs) {
    EXPECT_NE(run.config.offload.optimizer, OffloadOptimizer::none) << run.layout;
    EXPECT_LE(static_cast<double>(run.plan.total), plan.memory_limit);
    EXPECT_GT(run.time.offload, 0);
    EXPECT_NE(run.layout.find("state on the host"), std::string::npos);
  }
  // The chosen share is set in the configuration, so that pricing it gives the same time.
  const PlannedRun& best = plan.runs.front();
  EXPECT_EQ(price_config(best.config, 512, cluster).time.total(), best.time.total());
  EXPECT_TRUE(planned(tight, {"offload.optimizer=none"}).runs.empty()) << "the key is given";
  cluster.host.memory_bytes = 1 << 20;
  EXPECT_TRUE(planned(tight).runs.empty()) << "the host's memory is too small";
}

TEST(OffloadPlan, MoreMemoryNeverMakesTheBestSlower) {
  Cluster cluster = cluster_file("a100-80gb");
  double best = 1e30;
  for (const double mib : {16.0, 20.0, 26.0, 36.0, 60.0, 400.0}) {
    cluster.memory_bytes = mib * (1 << 20);
    const Plan plan = plan_layouts({.config = small(), .vocab = 512, .devices = 4, .threads = 1}, cluster);
    const double now = plan.runs.empty() ? 1e30 : plan.runs.front().time.total();
    EXPECT_LE(now, best * (1 + 1e-9)) << mib;
    best = now;
  }
  EXPECT_LT(best, 1e30);
}

TEST(OffloadPlan, AsksForTheHostWhereItIsNotKnown) {
  Cluster cluster = cluster_file("a100-80gb");
  cluster.host = {};
  try {
    price_config(small(kInterleaved), 512, cluster);
    ADD_FAILURE() << "priced";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::config);
    EXPECT_NE(std::string(error.what()).find("the table [host] is missing"), std::string::npos) << error.what();
  }
}

TEST(Variants, PlaceRanksElsewhereAndKeepMatrices) {
  const auto texts = [](const std::vector<std::string>& sets, int64_t devices_per_node) {
    std::vector<std::string> all;
    const Config config = small(sets);
    for (const Config& variant : config::variants(config, devices_per_node)) {
      EXPECT_TRUE(config::layout_fits(variant));
      all.push_back(config::layout_text(variant));
    }
    return all;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts({"parallel.strategy=axonn-4d", "parallel.grid=[2, 1, 2]", "parallel.data=1"}, 2),
            (Texts{"grid 2 x 1 x 2, order yzxd, data 1", "grid 2 x 1 x 2, cache_layers 3, data 1"}));
  EXPECT_EQ(texts({"parallel.strategy=axonn-4d", "parallel.grid=[2, 1, 2]", "parallel.data=1"}, 8),
            (Texts{"grid 2 x 1 x 2, cache_layers 3, data 1"}));
  EXPECT_EQ(
      texts({"parallel.strategy=axonn-4d", "parallel.grid=[2, 2, 2]", "parallel.data=1", "parallel.cache_layers=1"}, 4)
          .size(),
      5u);
  EXPECT_EQ(texts({"parallel.strategy=optimus-2d", "parallel.mesh=[4, 4]", "parallel.data=1"}, 4),
            (Texts{"mesh 4 x 4, cache_layers 3, data 1", "mesh 4 x 4, stationary paper, data 1",
                   "mesh 4 x 4, node_tile [2, 2], data 1", "mesh 4 x 4, node_tile [4, 1], data 1"}));
  EXPECT_EQ(texts({"parallel.tensor=4"}, 2), Texts());
}

}  // namespace
}  // namespace trainer::plan
