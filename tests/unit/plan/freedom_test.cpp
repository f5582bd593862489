// More free keys never make the best plan slower: keys that are not set, and per-layer layouts, which include every
// named one. Random models, machines and memory, from generous to less than the model's state.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "config/load.h"
#include "plan/planner.h"
#include "rigs/cluster_files.h"
#include "rigs/draws.h"
#include "rigs/slow.h"

namespace trainer::plan {
namespace {

using Sets = std::vector<std::string>;
constexpr double kNever = std::numeric_limits<double>::infinity();

using tests::Draws, tests::slow;

struct Case {
  std::string model;
  Cluster cluster;
  int64_t devices = 1, vocab = 0;

  /// Returns the seconds of the best step with these keys given.
  double best(const Sets& sets) const {
    const config::Config config = config::load_text(model, "test.toml", sets, {.files = false, .plans = true});
    const Plan plan = plan_layouts({.config = config, .vocab = vocab, .devices = devices, .threads = 2}, cluster);
    return plan.runs.empty() ? kNever : plan.runs.front().time.total();
  }
};

Case random_case(uint64_t seed) {
  Draws draw(seed, "freedom");
  Case c;
  c.cluster = tests::cluster_file(draw.one_of<std::string>({"a100-80gb", "frontera-rtx", "h100", "perlmutter"}));
  c.cluster.inter.gb_per_s *= draw.between_logarithms(0.02, 2);
  c.cluster.intra.gb_per_s *= draw.between_logarithms(0.1, 2);
  c.devices = draw.one_of<int64_t>({2, 4, 8});
  c.vocab = draw.one_of<int64_t>({8192, 50304, 128256});
  const int64_t layers = draw.one_of<int64_t>({2, 6, 48}), heads = draw.one_of<int64_t>({12, 16, 32}),
                width = heads * draw.one_of<int64_t>({64, 128});
  const double parameters = 12 * static_cast<double>(layers * width * width) + static_cast<double>(c.vocab * width);
  c.cluster.memory_bytes = 18 * parameters / static_cast<double>(c.devices) * draw.between_logarithms(0.7, 30);
  c.model = format(
      "[model]\narch = \"{}\"\nn_layer = {}\nn_head = {}\nn_kv_head = {}\nd_model = {}\nd_ff = {}\nseq_len = {}\n"
      "[data]\nvocab_size = {}\n[train]\nglobal_batch = {}\n",
      draw.one_of<std::string>({"gpt2", "llama"}), layers, heads, heads / draw.one_of<int64_t>({1, 4}), width,
      4 * width, draw.one_of<int64_t>({512, 2048}), c.vocab, draw.one_of<int64_t>({16, 48}));
  return c;
}

// A layout that the search omits because of its estimate is faster by at most this factor than the one that it finds.
constexpr double kRegret = 1.01;

TEST(Freedom, TablesIncludeEveryNamedLayout) {
  const uint64_t seeds = slow() ? 40 : 8;
  uint64_t compared = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const Case c = random_case(seed);
    const double tables = c.best({"parallel.strategy=autoddl"}), joint = c.best({});
    EXPECT_LE(tables, joint * kRegret) << "seed " << seed;
    EXPECT_EQ(std::isfinite(tables), std::isfinite(joint)) << "seed " << seed;
    const double replicas =
        c.best({"parallel.strategy=megatron-1d", format("parallel.data={}", c.devices), "parallel.zero_stage=1"});
    EXPECT_LE(tables, replicas * (1 + 1e-9)) << "seed " << seed;
    compared += std::isfinite(joint);
  }
  EXPECT_GE(compared, seeds * 3 / 4);
}

TEST(Freedom, KeysLeftOpenNeverMakeTheBestSlower) {
  const uint64_t seeds = slow() ? 12 : 3;
  uint64_t compared = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const Case c = random_case(seed);
    const double open = c.best({});
    Draws draw(1000 + seed, "freedom");
    for (int i = 0; i < 4; ++i) {
      Sets given = {draw.one_of<std::string>({"parallel.strategy=megatron-1d", "parallel.strategy=optimus-2d",
                                              "parallel.strategy=axonn-4d", "parallel.data=1", "parallel.data=2"})};
      if (draw.below(2) == 0) given.push_back(format("train.micro_batch={}", draw.one_of<int64_t>({1, 2, 4, 8})));
      if (draw.below(3) == 0) given.push_back("train.recompute=selective");
      if (draw.below(3) == 0) given.push_back("train.recompute=full");
      if (draw.below(4) == 0) given.push_back(format("parallel.zero_stage={}", draw.below(2)));
      if (draw.below(3) == 0) given.push_back("offload.optimizer=none");
      double best = kNever;
      try {
        best = c.best(given);
      } catch (const Error& error) {  // no layout has these keys
        EXPECT_EQ(error.code(), Code::config) << error.what();
      }
      if (best == kNever) continue;
      EXPECT_LE(open, best * kRegret) << "seed " << seed << ": " << given.front() << " and " << given.back();
      ++compared;
    }
  }
  EXPECT_GE(compared, 2 * seeds);
}

// 16 ranks share four sequences, and memory is too small for tensor parallelism or gathered operands.
TEST(Freedom, TablesStreamBlocksWhereOperandsDoNotFit) {
  Case c;
  c.cluster = tests::cluster_file("frontera-rtx");
  c.devices = 16;
  c.vocab = 8192;
  c.model =
      "[model]\nn_layer = 4\nn_head = 16\nd_model = 1024\nd_ff = 4096\nseq_len = 1024\n[data]\nvocab_size = 8192\n"
      "[train]\nglobal_batch = 4\nmicro_batch = 4\n[parallel]\nstrategy = \"autoddl\"\n[offload]\noptimizer = "
      "\"none\"\n";
  c.cluster.memory_bytes = 0.156e9;
  const config::Config config = config::load_text(c.model, "test.toml", {}, {.files = false, .plans = true});
  const Plan plan = plan_layouts({.config = config, .vocab = c.vocab, .devices = c.devices, .threads = 2}, c.cluster);
  ASSERT_FALSE(plan.runs.empty());
  EXPECT_EQ(plan.runs.front().config.parallel.layer.front().schedule, "ring") << plan.runs.front().layout;
}

}  // namespace
}  // namespace trainer::plan
