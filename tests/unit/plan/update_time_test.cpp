// The time of Muon's update, simulated and as estimated by the search over layouts.
#include "plan/update_time.h"

#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "plan/layer_costs.h"
#include "plan/pricing.h"
#include "rigs/messages.h"

namespace trainer::plan {
namespace {

using config::Config;

Config gpt2(const std::vector<std::string>& sets) {
  return config::load_text(R"([model]
n_layer = 12
n_head = 12
d_model = 768
seq_len = 64
[data]
vocab_size = 1024
[train]
global_batch = 16
micro_batch = 1
[optim]
name = "muon"
[precision]
compute = "fp32"
)",
                           "test.toml", sets, {.files = false, .plans = true});
}

/// A machine on which only GEMMs take time.
Cluster exact() {
  Cluster c;
  c.devices_per_node = 64;
  c.memory_bytes = 1e15;
  c.peaks = {{DType::f32, 1e12}, {DType::bf16, 4e12}};
  c.intra.gb_per_s = 1e12;
  return c;
}

PlannedRun priced(const Config& config, const Cluster& cluster, Depth depth) {
  PlannedRun run = planned(config);
  Pricer(cluster, config, config.data.vocab_size, config::ranks_of_replica(config) * config.parallel.data)
      .price(run, depth);
  return run;
}

// F = 20k²n + 10k³ over 12 blocks, of four matrices 768 x 768 and two 768 x 3072.
constexpr double kWidth = 768, kFlops = 12 * (4 * 30 + 2 * 90) * kWidth * kWidth * kWidth;

TEST(UpdateTime, IsTheWorkOfOneOfManyRanksAtTheRateOfItsType) {
  for (const int ranks : {1, 2, 4, 8}) {
    SCOPED_TRACE(ranks);
    const std::string data = format("parallel.data={}", ranks);
    const auto seconds = [&](const std::vector<std::string>& sets) {
      const Config config = gpt2(sets);
      const double estimate = orthogonalization_seconds(exact(), config, DType::f32);
      const PlannedRun run = priced(config, exact(), Depth::all);
      EXPECT_NEAR(run.time.optimizer, estimate, 1e-9 * estimate);
      EXPECT_NEAR(run.plan.update.flops, kFlops * (sets.back().ends_with("replica") ? 1.0 : 1.0 / ranks), 1);
      return run.time.optimizer;
    };
    EXPECT_NEAR(seconds({data}), kFlops / ranks / 1e12, 1e-9);
    EXPECT_NEAR(seconds({data, "muon.compute=bf16"}), kFlops / ranks / 4e12, 1e-9);
    EXPECT_NEAR(seconds({data, "muon.owners=replica"}), kFlops / 1e12, 1e-9) << "every replica does all of it";
  }
  EXPECT_EQ(orthogonalization_seconds(exact(), gpt2({"optim.name=adamw", "parallel.data=1"}), DType::f32), 0);
}

TEST(UpdateTime, IsKnownFromAFewLayers) {
  for (const int ranks : {1, 3, 8, 16}) {
    const Config config = gpt2({format("parallel.data={}", ranks), format("train.global_batch={}", ranks)});
    const PlannedRun few = priced(config, exact(), Depth::few), all = priced(config, exact(), Depth::all);
    EXPECT_FALSE(few.whole);
    EXPECT_NEAR(few.time.optimizer / all.time.optimizer, 1, 1e-6) << ranks << " ranks";
  }
}

TEST(UpdateTime, TheEstimateOfALayoutIncludesTheExchange) {
  Cluster slow = exact();
  slow.intra.gb_per_s = 1;
  const auto exchange = [&](const std::vector<std::string>& sets) {
    const Config config = gpt2(sets);
    const sharding::ModelSharding layout = config::sharding_of(config);
    return update_seconds(slow, config, DType::f32, layout) - orthogonalization_seconds(slow, config, DType::f32);
  };
  // 12 x 12 x 768² elements of 4 bytes, a quarter on each of 4 ranks.
  const double bytes = 12 * 12 * kWidth * kWidth * 4 / 4;
  EXPECT_EQ(exchange({"parallel.data=1"}), 0);
  // GEMMs that take no time, so that nothing overlaps. Copies go from the owner to three ranks; shards to it and back.
  slow.peaks[DType::f32] = 1e30;
  EXPECT_NEAR(exchange({"parallel.data=4"}), 3 * bytes / 1e9, 1e-3);
  EXPECT_NEAR(exchange({"parallel.data=4", "parallel.zero_stage=1"}), 1.5 * bytes / 1e9, 1e-3);
  EXPECT_NEAR(exchange({"parallel.data=1", "parallel.tensor=4"}), 1.5 * bytes / 1e9, 1e-3);
  EXPECT_NEAR(exchange({"parallel.data=2", "parallel.tensor=2"}), (1 + 2 - 1) * bytes / 1e9, 1e-3);
  EXPECT_EQ(exchange({"parallel.data=4", "muon.owners=replica"}), 0);
}

TEST(UpdateTime, RequiresAPeakForTheTypeOfItsProducts) {
  Cluster cluster = exact();
  cluster.peaks.erase(DType::bf16);
  EXPECT_FALSE(type_without_peak(cluster, gpt2({}), DType::f32));
  EXPECT_EQ(type_without_peak(cluster, gpt2({"muon.compute=bf16"}), DType::f32), DType::bf16);
  EXPECT_FALSE(type_without_peak(cluster, gpt2({"muon.compute=bf16", "optim.name=adamw"}), DType::f32));
}

}  // namespace
}  // namespace trainer::plan
