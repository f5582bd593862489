// Updates during the next forward pass have the same bits as updates between two steps.
#include <gtest/gtest.h>

#include "optim/make.h"
#include "rigs/tiny.h"

namespace trainer::tests {
namespace {

using config::Config;

/// A model with groups of many tasks, whose last task is short.
Config config_of(config::Arch arch) {
  Config c = tiny_config(arch);
  c.model.d_model = 96;
  c.model.d_ff = 250;
  c.train.global_batch = c.train.micro_batch;
  return c;
}

struct Ran {
  std::vector<double> values;  // losses, with those of evaluations
  std::vector<std::byte> state;
  bool operator==(const Ran&) const = default;
};

bool stop_at_once() { return true; }

/// Five steps, with an evaluation before the second one, and an interrupted step before the third one.
Ran run(Config c, DType compute, int threads, bool overlap) {
  c.optim.overlap = overlap;
  Tiny tiny(c, compute, threads);
  Ran ran;
  data::TokenBatch held_out;
  tiny.batches(1000, c.train.micro_batch, held_out);
  for (int64_t n = 1; n <= 5; ++n) {
    if (n == 2) ran.values.push_back(tiny.trainer.loss_sum(held_out));
    if (n == 3) EXPECT_TRUE(tiny.step(n, 1e-3, stop_at_once).interrupted);
    ran.values.push_back(tiny.step(n).loss);
  }
  ran.state = tiny.state();
  ran.values.push_back(tiny.trainer.loss_sum(held_out));
  return ran;
}

class OverlappedUpdate : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, OverlappedUpdate, testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

TEST_P(OverlappedUpdate, HasTheBitsOfOneBetweenSteps) {
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama})
    for (const int64_t accumulation : {1, 3}) {
      Config c = config_of(arch);
      c.train.global_batch *= accumulation;
      const Ran expected = run(c, GetParam(), 2, false);
      for (const int threads : {1, 2, 3, 5})
        EXPECT_TRUE(run(c, GetParam(), threads, true) == expected) << threads << " threads";
      if (GetParam() == DType::f64) continue;
      c.optim.moments = config::Moments::bf16;
      EXPECT_TRUE(run(c, GetParam(), 2, true) == run(c, GetParam(), 2, false)) << "moments in bf16";
    }
}

std::vector<std::byte> bytes_of(const params::Group& group) {
  const Tensor master = group.master;
  return {master.data, master.data + master.bytes()};
}

TEST(OverlappedUpdates, BeginWhenAWeightIsRead) {
  Tiny tiny(config_of(config::Arch::gpt2), DType::bf16, 2);
  params::ParamStore& store = tiny.trainer.store();
  EXPECT_FALSE(store.gradients_in_arena());
  std::vector<std::vector<std::byte>> before;
  for (const params::Group& group : store.groups()) before.push_back(bytes_of(group));
  tiny.step(1);
  device::pool_of(tiny.device).parallel_for(1000, [](int64_t) {});
  for (size_t g = 0; g < before.size(); ++g) EXPECT_EQ(bytes_of(store.groups()[g]), before[g]) << "updated early";
  for (size_t g = 0; g < before.size(); ++g) {
    store.stored_weight(store.groups()[g].slots.front());
    EXPECT_NE(bytes_of(store.groups()[g]), before[g]) << "group " << g;
    if (g + 1 < before.size()) EXPECT_EQ(bytes_of(store.groups().back()), before.back());
  }
}

TEST(OverlappedUpdates, AreDroppedIfTheWeightsAreReplaced) {
  const Config c = config_of(config::Arch::gpt2);
  Tiny tiny(c, DType::bf16, 2), other(c, DType::bf16, 2);
  tiny.step(1);
  tiny.trainer.store().initialize(static_cast<uint64_t>(c.run.seed));
  for (size_t g = 0; g < tiny.trainer.store().groups().size(); ++g)
    EXPECT_EQ(bytes_of(tiny.trainer.store().groups()[g]), bytes_of(other.trainer.store().groups()[g]));
  tiny.trainer.store().settle();
  for (size_t g = 0; g < tiny.trainer.store().groups().size(); ++g)
    EXPECT_EQ(bytes_of(tiny.trainer.store().groups()[g]), bytes_of(other.trainer.store().groups()[g]));
}

TEST(OverlappedUpdates, AreForSmallMicroBatchesOfAdamWOnSeveralThreads) {
  Config c = tiny_config();
  c.train.micro_batch = 2;
  c.model.seq_len = 256;
  EXPECT_TRUE(optim::overlaps_forward(c, 2));
  EXPECT_FALSE(optim::overlaps_forward(c, 1));
  const auto not_with = [&](auto change) {
    Config other = c;
    change(other);
    EXPECT_FALSE(optim::overlaps_forward(other, 2));
  };
  not_with([](Config& o) { o.train.micro_batch = 3; });
  not_with([](Config& o) { o.optim.overlap = false; });
  not_with([](Config& o) { o.debug.overlap = false; });
  not_with([](Config& o) { o.optim.name = config::OptimizerName::muon; });
  not_with([](Config& o) { o.parallel.zero_stage = 1; });
  not_with([](Config& o) { o.offload.optimizer = config::OffloadOptimizer::cpu; });
}

}  // namespace
}  // namespace trainer::tests
