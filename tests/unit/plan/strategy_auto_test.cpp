// Strategy "auto": a layout for the memory that is free on every rank, and the layout of a run that is resumed.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <tuple>

#include "config/layouts.h"
#include "config/load.h"
#include "config/text.h"
#include "plan/prediction.h"
#include "rigs/files.h"
#include "rigs/messages.h"
#include "setup/run_plan.h"

namespace trainer::plan {
namespace {

using config::Config;

constexpr int kRanks = 4;
constexpr int64_t kVocab = 1000, kPlenty = int64_t{3} << 30;
constexpr const char* kModel = R"([model]
n_layer = 6
n_head = 8
d_model = 256
seq_len = 256
vocab_multiple = 128
[data]
vocab_size = 1000
[train]
global_batch = 16
[precision]
compute = "fp32"
)";

const std::vector<std::string> kAuto = {"parallel.strategy=auto"};

Machine machine_of(int rank, int64_t limit) {
  Machine machine{
      .threads = rank == 1 ? 4 : 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
  machine.ranks = kRanks;
  machine.rank = rank;
  machine.memory_limit = limit;
  return machine;
}

/// The laptop's cluster file, for one node of kRanks devices.
class StrategyAuto : public testing::Test {
 protected:
  StrategyAuto() {
    std::string text = cluster_text(TRAINER_SOURCE_DIR "/configs/clusters/laptop-2core.toml");
    const auto replace = [&](const std::string& old, const std::string& by) {
      text.replace(text.find(old), old.size(), by);
    };
    replace("devices_per_node = 2", format("devices_per_node = {0}\nranks = {0}", kRanks));  // as if measured here
    replace("core with AVX2", device_text(machine_of(0, 0)));
    profile_ = tests::write(folder_ / "node.toml", text);
  }
  Config small(std::vector<std::string> sets) const {
    sets.push_back("hardware.profile=" + profile_);
    return config::load_text(kModel, "test.toml", sets, {.files = false, .plans = true});
  }

 private:
  const tests::TempFolder folder_;
  std::string profile_;
};

/// Returns what all ranks choose if rank 2 has `limit` bytes of memory and the other ranks have kPlenty.
Config choose(const Config& config, int64_t limit, const std::optional<Config>& trained = {}) {
  std::mutex mutex;
  std::vector<Config> chosen;
  comm::run_on_threads(kRanks, {.timeout_s = 60}, [&](comm::World& world) {
    const Machine machine = machine_of(world.rank(), world.rank() == 2 ? limit : kPlenty);
    Config own = choose_strategy(world, config, trained, kVocab, machine);
    const std::scoped_lock lock(mutex);
    chosen.push_back(std::move(own));
  });
  for (const Config& each : chosen) EXPECT_EQ(config::to_toml(each), config::to_toml(chosen.front()));
  return chosen.front();
}

int64_t memory_of(const Config& config) {
  int64_t most = 0;
  for (int rank = 0; rank < kRanks; ++rank)
    most = std::max(most, setup::plan_run(config, kVocab, machine_of(rank, kPlenty), true).total);
  return most;
}

std::string text_of(const Config& config) {
  return format("{} {} micro_batch {} recomputation {}", name_of(config.parallel.strategy), config::layout_text(config),
                config.train.micro_batch, config::recompute_text(config.train));
}
/// True if both round results in the same way. ZeRO-1, recomputation and cached layers do not change them.
bool same_layout(const Config& a, const Config& b) {
  const auto rounding = [](Config c) {
    c.parallel.cache_layers = 0;
    return std::tuple(config::sharding_of(c), c.train.micro_batch, c.parallel.panels, c.parallel.stationary,
                      c.parallel.vocab_axes);
  };
  return rounding(a) == rounding(b);
}

TEST_F(StrategyAuto, FitsInTheLeastFreeMemoryOfAllRanks) {
  tests::Warnings log;
  const int64_t most = memory_of(choose(small(kAuto), kPlenty));
  std::set<std::string> layouts;
  int64_t least = most;
  for (const double share : {1.02, 0.9, 0.7, 0.5}) {
    const auto limit = static_cast<int64_t>(share * static_cast<double>(most));
    const Config chosen = choose(small(kAuto), limit);
    least = std::min(least, memory_of(chosen));
    EXPECT_LE(memory_of(chosen), limit) << share << ": " << text_of(chosen);
    layouts.insert(text_of(chosen));
  }
  EXPECT_GE(layouts.size(), 3u) << "less memory, other choices";
  tests::expect_error(Code::plan, {"memory"}, [&] { choose(small(kAuto), least / 20); });
}

TEST_F(StrategyAuto, ADryRunChoosesForItsOwnRank) {
  tests::Warnings log;
  const std::unique_ptr<comm::World> world = comm::dry_world(kRanks);
  const Config chosen = choose_strategy(*world, small(kAuto), {}, kVocab, machine_of(0, kPlenty));
  EXPECT_EQ(config::to_toml(chosen), config::to_toml(choose(small(kAuto), kPlenty)));
}

TEST_F(StrategyAuto, AResumedRunKeepsItsLayoutIfItFits) {
  tests::Warnings log;
  const Config preferred = choose(small(kAuto), kPlenty);
  const std::vector<std::vector<std::string>> runs = {
      {"parallel.strategy=fsdp", "parallel.shards=2", "parallel.data=2", "train.micro_batch=4"},
      {"parallel.strategy=megatron-1d", "parallel.tensor=4", "train.micro_batch=2", "parallel.data=1"},
      {"parallel.strategy=axonn-4d", "parallel.grid=[1, 2, 2]", "parallel.order=xyzd", "parallel.vocab_axes=x",
       "train.micro_batch=4", "parallel.data=1"},
      {"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]", "parallel.panels=ring", "parallel.stationary=paper",
       "train.micro_batch=4", "parallel.data=1"},
      {"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]", "parallel.panels=gather", "train.micro_batch=4",
       "parallel.data=1"},
      {"parallel.strategy=optimus-2d", "parallel.mesh=[2, 2, 1]", "train.micro_batch=4", "parallel.data=1"},
      {"parallel.strategy=fsdp", "parallel.shards=4", "parallel.context=2", "parallel.context_heads=1",
       "parallel.context_kv=ring", "train.micro_batch=4", "parallel.data=1"},
      {"parallel.tensor=2", "parallel.context=2", "parallel.context_kv=gather", "train.micro_batch=2",
       "parallel.data=1"},
      {"parallel.strategy=autoddl", "parallel.axes=[2, 2]", "parallel.head=rc", "parallel.table=fv", "parallel.data=1",
       "train.micro_batch=2",
       "parallel.layer=[{stream = 'rc', attention = 'rc', hidden = 'rc', qkv = 'fc', out = 'fk', up = 'fc', "
       "down = 'fk'}]"}};
  for (const std::vector<std::string>& sets : runs) {
    // As a checkpoint stores it.
    const Config trained = config::load_text(config::to_toml(small(sets)), "config.toml", {}, {.files = false});
    const Config kept = choose(small(kAuto), kPlenty, trained);
    EXPECT_TRUE(same_layout(kept, trained)) << text_of(kept);
    EXPECT_FALSE(same_layout(kept, preferred)) << text_of(kept);
    tests::expect_parts(log.lines.back(), {"keeps the run's layout"});
    const int64_t limit = memory_of(kept) * 95 / 100;
    const Config tight = choose(small(kAuto), limit, trained);
    EXPECT_TRUE(same_layout(tight, trained)) << text_of(tight);
    EXPECT_NE(text_of(tight), text_of(kept));
    EXPECT_LE(memory_of(tight), limit);
  }
  // Keys that do not change results are chosen again.
  const Config caching = small({"parallel.strategy=fsdp", "parallel.shards=4", "parallel.data=1", "train.micro_batch=8",
                                "parallel.cache_layers=6", "parallel.overlap.all_gather=false"});
  const Config lean = choose(small(kAuto), memory_of(caching) * 7 / 10, caching);
  EXPECT_TRUE(same_layout(lean, caching)) << text_of(lean);
  EXPECT_LT(lean.parallel.cache_layers, 6);
  EXPECT_TRUE(lean.parallel.overlap_all_gather);
  // A warning names the reason if the layout is not kept.
  const auto warns = [&](const std::vector<std::string>& keys, int64_t limit, const Config& trained,
                         const std::vector<std::string>& parts) {
    log.lines.clear();
    EXPECT_LE(memory_of(choose(small(keys), limit, trained)), limit);
    ASSERT_EQ(log.lines.size(), 2u);
    tests::expect_parts(log.lines[0], {"strategy \"auto\" chose"});
    tests::expect_parts(log.lines[1], {"results will round differently"});
    tests::expect_parts(log.lines[1], parts);
  };
  const Config wide = small({"parallel.strategy=megatron-1d", "parallel.data=4", "parallel.zero_stage=1",
                             "train.micro_batch=4", "train.recompute=full"});
  warns(kAuto, memory_of(wide) * 95 / 100, wide, {"which does not fit in memory"});
  warns({"parallel.strategy=auto", "parallel.data=2"}, kPlenty, small(runs[1]),
        {"parallel.data", "which is not one for these ranks and keys"});
  warns(kAuto, kPlenty, small({"parallel.strategy=megatron-1d", "parallel.tensor=2", "parallel.data=4"}),
        {"which is not one for these ranks and keys"});
  warns({"parallel.strategy=auto", "train.micro_batch=8"}, kPlenty, small(runs[1]),
        {"(train.micro_batch)", "the keys that are set now"});
  warns({"parallel.strategy=auto", "parallel.panels=gather"}, kPlenty, small(runs[3]), {"(parallel.panels)"});
}

// One sequence and three heads on four ranks: all of them split its tokens.
TEST_F(StrategyAuto, KeepsTheRanksThatShareSequencesAndTheirExchange) {
  tests::Warnings log;
  std::vector<std::string> sets = kAuto;
  sets.insert(sets.end(),
              {"model.n_layer=2", "model.n_head=3", "model.d_model=96", "model.seq_len=8192", "train.global_batch=1"});
  const Config own = choose(small(sets), kPlenty);
  const sharding::ModelSharding sharding = config::sharding_of(own);
  EXPECT_EQ(sharding.ranks(sharding.layers.front().context.axes), 4) << text_of(own);
  EXPECT_NE(own.parallel.context_kv, config::Panels::automatic);
  Config other = own;
  other.parallel.context_kv =
      own.parallel.context_kv == config::Panels::ring ? config::Panels::gather : config::Panels::ring;
  for (const Config& trained : {own, other}) {
    const Config stored = config::load_text(config::to_toml(trained), "config.toml", {}, {.files = false});
    const Config kept = choose(small(sets), kPlenty, stored);
    EXPECT_TRUE(same_layout(kept, trained)) << text_of(kept);
    EXPECT_EQ(kept.parallel.context_kv, trained.parallel.context_kv) << text_of(kept);
    tests::expect_parts(log.lines.back(), {"keeps the run's layout"});
    const int64_t limit = memory_of(kept) * 95 / 100;
    const Config tight = choose(small(sets), limit, stored);
    EXPECT_TRUE(same_layout(tight, trained)) << text_of(tight);
    EXPECT_LE(memory_of(tight), limit);
  }
}

TEST_F(StrategyAuto, KeepsGivenStagesAndThoseOfAResumedRun) {
  std::vector<std::string> sets = kAuto;
  sets.emplace_back("parallel.stages=2");
  const Config staged = choose(small(sets), kPlenty);
  EXPECT_EQ(staged.parallel.stages, 2);
  EXPECT_EQ(config::ranks_of_replica(staged) * staged.parallel.data, kRanks);
  EXPECT_EQ(std::ssize(staged.parallel.stage_layers), 2 * staged.parallel.chunks);
  const Config resumed = choose(small(kAuto), kPlenty, staged);
  EXPECT_EQ(config::to_toml(resumed), config::to_toml(staged));
}

}  // namespace
}  // namespace trainer::plan
