// Context parallelism at lengths for which it is made: gradients of one rank, and memory.
#include "rigs/layouts.h"
#include "rigs/slow.h"

namespace trainer::tests {
namespace {

using config::Config;
using config::Panels;

/// Returns a tiny model whose sequence `ranks` ranks share; `heads` of them split its heads.
Config one_sequence(int64_t length, int64_t ranks, int64_t heads, Panels kv) {
  Config c = tiny_config();
  c.parallel.strategy = config::StrategyName::fsdp;
  c.parallel.shards = c.parallel.context = ranks;
  c.parallel.context_heads = heads;
  c.parallel.context_kv = kv;
  c.parallel.data = 1;
  c.train.micro_batch = c.train.global_batch = 1;
  c.model.n_layer = 1;
  c.model.n_head = c.model.n_kv_head = 4;
  c.model.seq_len = length;
  return c;
}
struct Way {
  int64_t heads;
  Panels kv;
};
constexpr Way kWays[] = {{4, Panels::automatic}, {1, Panels::gather}, {1, Panels::ring}, {2, Panels::ring}};

/// Returns the memory of rank 0 of all ranks, by category.
BytesByCategory memory_of(const Config& c, DType compute = DType::f32, int64_t vocab = kTinyVocab) {
  device::DryDevice device(1);
  const auto world = comm::dry_world(static_cast<int>(config::ranks_of_replica(c)));
  train::Trainer trainer(device, *world, c, vocab, compute);
  trainer.plan();
  return trainer.memory();
}
double activations(const Config& c) { return static_cast<double>(memory_of(c).at("activations")); }

void expect_gradients_of_one_rank(const Config& c) {
  const Result many = train(c, DType::f64, 1), one = train(on_one_rank(c), DType::f64, 1);
  expect_same_gradients(many.gradients, one.gradients, 1e-12);
  EXPECT_NEAR(many.losses[0], one.losses[0], 1e-10 * one.losses[0]);
}

TEST(Context, OfOneLongSequenceFollowsOneRank) {
  for (const Way& way : kWays) expect_gradients_of_one_rank(one_sequence(2048, 4, way.heads, way.kv));
}

// The slow test slow_Context runs this: 32 768 tokens on four ranks.
TEST(DISABLED_Context, OfManyTokensFollowsOneRankInLessThanAThirdOfTheMemory) {
  Config c = one_sequence(32768, 4, 1, Panels::ring);
  c.model.n_layer = 2;
  c.model.d_model = 32;
  c.model.n_head = 2;
  c.model.n_kv_head = 1;
  expect_gradients_of_one_rank(c);
}

TEST(Context, OfManyTokensTakesLittleMoreThanItsShareOfTheActivations) {
  Config c = one_sequence(32768, 4, 1, Panels::ring);
  c.model.n_layer = 2;
  c.model.d_model = 32;
  c.model.n_head = 2;
  c.model.n_kv_head = 1;
  EXPECT_LE(activations(c), 0.3 * activations(on_one_rank(c)));
  for (const auto& [way, most] : {std::pair<Way, double>{kWays[0], 0.27}, {kWays[1], 0.3}, {kWays[2], 0.28}}) {
    Config deep = one_sequence(4096, 4, way.heads, way.kv);
    deep.model.n_layer = 12;
    deep.model.d_model = 256;
    deep.model.d_ff = 1024;
    const double share = activations(deep) / activations(on_one_rank(deep));
    EXPECT_LE(share, most) << "heads over " << way.heads;
  }
}

// Llama 3 8B with a million tokens on 64 ranks: predicted 14 to 17 GB per rank by hand, at most 20.
TEST(Context, OfAMillionTokensFitsOn64RanksOf20GB) {
  Config c = tiny_config(config::Arch::llama);
  c.model.n_layer = 32;
  c.model.n_head = 32;
  c.model.n_kv_head = 8;
  c.model.d_model = 4096;
  c.model.d_ff = 14336;
  c.model.seq_len = 1048576;
  c.model.dropout = 0;
  c.train.micro_batch = c.train.global_batch = 1;
  c.train.recompute = config::Recompute::full;
  c.parallel.data = 1;
  Config by_shards = c;
  c.parallel.tensor = c.parallel.context = 8;
  by_shards.parallel.strategy = config::StrategyName::fsdp;
  by_shards.parallel.shards = by_shards.parallel.context = 64;
  for (Config layout : {c, by_shards})
    for (const Panels kv : {Panels::gather, Panels::ring}) {
      layout.parallel.context_kv = kv;
      int64_t total = 0;
      for (const auto& [category, bytes] : memory_of(layout, DType::bf16, 128256)) total += bytes;
      EXPECT_LE(total, int64_t{20'000'000'000}) << config::layout_text(layout);
      EXPECT_GE(total, int64_t{8'000'000'000}) << config::layout_text(layout);
    }
}

}  // namespace
}  // namespace trainer::tests
