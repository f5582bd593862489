// Training of models with experts on one rank: the losses of routers, recomputation, accumulation, faults.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rigs/tiny.h"
#include "train/replica_check.h"

namespace trainer::tests {
namespace {

using config::Balance, config::Recompute;

TEST(TrainingWithExperts, HasTheSameBitsOnAnyNumberOfThreadsAndWithRecomputation) {
  for (const bool shared : {false, true})
    for (const bool post_norm : {false, true})
      for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
        std::vector<std::byte> first;
        const auto expect_same = [&](int threads, Recompute recompute) {
          config::Config c = tiny_experts(shared);
          if (post_norm) c.model.norm_place = config::NormPlace::post;
          c.train.recompute = recompute;
          Tiny run(c, compute, threads);
          for (int64_t n = 1; n <= 2; ++n) run.step(n);
          if (first.empty()) first = run.state();
          EXPECT_TRUE(run.state() == first) << threads << " " << static_cast<int>(recompute);
        };
        expect_same(1, Recompute::none);
        expect_same(3, Recompute::none);
        expect_same(2, Recompute::selective);
        expect_same(2, Recompute::full);
      }
}

TEST(TrainingWithExperts, ReportsABalanceLossOfOneForEqualCounts) {
  config::Config c = tiny_experts();
  c.model.seq_len = 12;  // 2 · 12 · 2 choices of 8 experts
  c.debug.balanced_routing = true;
  Tiny run(c, DType::f64, 1);
  const auto outcome = run.step(1);
  EXPECT_NEAR(outcome.balance_loss, 1, 1e-14);
  EXPECT_GT(outcome.router_z_loss, 1);  // about (ln 8)²
}

/// Returns the outcome and the gradients of the samples [first, first + count), `micro` at a time.
struct Part {
  train::Trainer::Outcome outcome;
  std::vector<double> gradients;
};
Part part(config::Config c, int64_t first, int64_t count, int64_t micro) {
  c.train.global_batch = count;
  c.train.micro_batch = micro;
  c.model.dropout = 0;
  Tiny run(c, DType::f64, 1);
  Part result{run.trainer.gradients(
      {.step = 1, .first_sample = first, .adam_step = 1, .micro_batches = count / micro, .lr = 1e-3}, run.batches)};
  for (const params::Group& group : run.trainer.store().groups()) {
    const Tensor grad = group.grad;
    result.gradients.insert(result.gradients.end(), grad.as<double>(), grad.as<double>() + grad.count());
  }
  return result;
}

// Balance over sequences does not depend on micro-batches. Balance over micro-steps is the mean of theirs.
TEST(TrainingWithExperts, AddsUpTheLossesOfMicroSteps) {
  config::Config c = tiny_experts();
  for (const Balance balance : {Balance::sequence, Balance::batch}) {
    c.train.balance = balance;
    const Part four = part(c, 0, 4, 1);
    Part mean;
    if (balance == Balance::sequence) {
      mean = part(c, 0, 4, 4);
    } else {
      mean.gradients.resize(four.gradients.size());
      for (int64_t i = 0; i < 4; ++i) {
        const Part one = part(c, i, 1, 1);
        mean.outcome.balance_loss += one.outcome.balance_loss / 4;
        mean.outcome.router_z_loss += one.outcome.router_z_loss / 4;
        for (size_t g = 0; g < mean.gradients.size(); ++g) mean.gradients[g] += one.gradients[g] / 4;
      }
    }
    EXPECT_NEAR(four.outcome.balance_loss, mean.outcome.balance_loss, 1e-12);
    EXPECT_NEAR(four.outcome.router_z_loss, mean.outcome.router_z_loss, 1e-12);
    for (size_t g = 0; g < mean.gradients.size(); ++g) ASSERT_NEAR(four.gradients[g], mean.gradients[g], 1e-12) << g;
  }
  c.train.balance = Balance::batch;
  EXPECT_GT(std::abs(part(c, 0, 4, 1).outcome.balance_loss - part(c, 0, 4, 4).outcome.balance_loss), 1e-3);
}

TEST(TrainingWithExperts, EvaluatesWithoutTheLossesOfRouters) {
  double sums[2];
  for (const bool balanced : {false, true}) {
    config::Config c = tiny_experts(true);
    if (!balanced) c.train.balance_loss = c.train.router_z_loss = 0;
    Tiny run(c, DType::f64, 1);
    data::TokenBatch batch;
    run.batches(0, run.trainer.micro_batch(), batch);
    sums[balanced] = run.trainer.loss_sum(batch);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

// Indices stay valid, and the step is skipped.
TEST(TrainingWithExperts, SkipsAStepWhoseLogitsAreNotNumbers) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    Tiny run(tiny_experts(), DType::f64, 2);
    run.step(1);
    for (const params::Param& param : run.trainer.store().params()) {
      if (param.name != "blocks.1.mlp.router.weight") continue;
      params::Group& group = run.trainer.store().groups()[static_cast<size_t>(param.group)];
      group.master.tensor().as<double>()[param.runs.front().local + 3] = bad;
    }
    run.trainer.store().weights_changed();
    const std::vector<std::byte> before = run.state();
    EXPECT_TRUE(run.step(2).skipped);
    EXPECT_TRUE(run.state() == before);
  }
}

TEST(TrainingWithExperts, RefusesRanksOfAReplicaWhoseKernelsRoundDifferently) {
  if (device::detect_isa() == device::Isa::plain) GTEST_SKIP() << "one instruction set";
  for (const bool replicas : {false, true}) {
    config::Config c = tiny_experts();
    if (!replicas) c.parallel.strategy = config::StrategyName::fsdp;
    (replicas ? c.parallel.data : c.parallel.shards) = 2;
    comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
      const device::Isa isa = world.first() ? device::detect_isa() : device::Isa::plain;
      std::string message;
      try {
        const Tiny run(&world, c, DType::f32, 1, isa);
      } catch (const Error& error) {
        message = error.what();
      }
      if (replicas)
        EXPECT_EQ(message, "");
      else
        EXPECT_NE(message.find("ranks 0 and 1 compute with different kernels"), std::string::npos) << message;
    });
  }
}

TEST(TrainingWithExperts, ComparesTheChoicesOfRanksWithTheSameRows) {
  config::Config c = tiny_experts();
  c.parallel.data = 1;
  c.parallel.tensor = 2;
  c.model.n_head = c.model.n_kv_head = 2;
  c.debug.check_replicas_every = 1;
  comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    run.step(1);
    train::check_replicas(run.trainer, 1);
    const int64_t pairs = c.model.n_layer * c.train.micro_batch * c.model.seq_len * 2;
    std::vector<int32_t> choices(static_cast<size_t>(pairs));
    for (size_t i = 0; i < choices.size(); ++i) choices[i] = static_cast<int32_t>(i % 2);
    if (world.rank() == 1) std::swap(choices[0], choices[1]);
    run.trainer.routing()->choices = {reinterpret_cast<std::byte*>(choices.data()), {pairs / 2, 2}, DType::i32};
    run.step(2, 0);  // changes no weight
    try {
      train::check_replicas(run.trainer, 2);
      ADD_FAILURE() << "the other choice was not detected";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the experts chosen in blocks.0.mlp on rank 1 differ from those on"),
                std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace trainer::tests
