// Fully sharded data parallelism compared with the distributed optimizer (ZeRO-1) and with one rank.
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

config::Config fully_sharded(int64_t shards, int64_t sequences, config::Arch arch) {
  config::Config c = tiny_config(arch);
  c.parallel.strategy = config::StrategyName::fsdp;
  c.parallel.shards = shards;
  c.parallel.data = 1;
  c.train.micro_batch = c.train.global_batch = sequences;
  return c;
}

/// Returns the memory of rank 0 of `ranks` ranks.
BytesByCategory memory_of(const config::Config& c, int ranks, int64_t vocab) {
  device::DryDevice device(1);
  const auto world = comm::dry_world(ranks);
  train::Trainer trainer(device, *world, c, vocab, DType::f32);
  trainer.plan();
  return trainer.memory();
}

/// Returns a configuration with ZeRO-1 that has the same ranks, batches and sums.
config::Config its_replicas(config::Config c) {
  c.parallel.strategy = config::StrategyName::megatron_1d;
  c.parallel.data = c.parallel.shards;
  c.parallel.shards = 0;
  c.parallel.zero_stage = 1;
  c.train.micro_batch /= c.parallel.data;
  return c;
}

// A sum of two gradients has the same bits in either order. Clipping is off: the norm adds blocks in another order.
TEST(Fsdp, OnTwoRanksHasTheBitsOfZero1) {
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama})
    for (const DType compute : {DType::f32, DType::f64}) {
      config::Config c = fully_sharded(2, 6, arch);
      c.optim.grad_clip = 0;
      const Result sharded = train(c, compute, 5), replicas = train(its_replicas(c), compute, 5);
      EXPECT_EQ(sharded.losses, replicas.losses);
      EXPECT_TRUE(sharded.gradients == replicas.gradients);
      EXPECT_TRUE(sharded.state == replicas.state);
    }
}

TEST(Fsdp, OnFourRanksFollowsZero1) {
  config::Config c = fully_sharded(4, 8, config::Arch::gpt2);
  c.model.init_std = 0.02;
  const Result sharded = train(c, DType::f32, 50), replicas = train(its_replicas(c), DType::f32, 50);
  expect_same_gradients(sharded.gradients, replicas.gradients, 1e-5);
  EXPECT_NEAR(sharded.losses[9], replicas.losses[9], 1e-6 * replicas.losses[9]);
  EXPECT_NEAR(sharded.losses[49], replicas.losses[49], 1e-5 * replicas.losses[49]);
}

struct Size {
  int64_t width, length, vocab;
};

TEST(Fsdp, OnFourRanksStoresAQuarterOfWeightsAndState) {
  for (const Size& size : {Size{256, 64, 8000}, Size{768, 1024, 16384}}) {
    config::Config c = fully_sharded(4, 4, config::Arch::gpt2);
    c.model.n_layer = 12;
    c.model.n_head = c.model.n_kv_head = size.width / 64;
    c.model.d_model = size.width;
    c.model.d_ff = 4 * size.width;
    c.model.seq_len = size.length;
    config::Config one = on_one_rank(c);
    one.train.micro_batch = 1;  // a rank's share of the sequences
    c.train.global_batch *= 2;  // two micro-batches, so that gradients have memory of their own
    BytesByCategory of_four = memory_of(c, 4, size.vocab), of_one = memory_of(one, 1, size.vocab);
    const auto stored = [](BytesByCategory& of) {
      return static_cast<double>(of["weights"] + of["gradients"] + of["optimizer"]);
    };
    EXPECT_GT(stored(of_one), 100e6);
    EXPECT_LE(stored(of_four), 0.26 * stored(of_one));
    // Gathered matrices and gradients in flight are in the arena, next to the activations.
    const auto moved = static_cast<double>(of_four["activations"] - of_one["activations"]);
    EXPECT_LE(stored(of_four) + moved, 0.30 * stored(of_one)) << (stored(of_four) + moved) / stored(of_one);
  }
}

}  // namespace
}  // namespace trainer::tests
