// Training with the optimizer's state on the host: the same bits as without, in every layout, and across checkpoints.
#include <gtest/gtest.h>

#include "rigs/layout_checks.h"
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

using config::OffloadOptimizer;
using config::OffloadOrder;

config::Config offloaded(config::Config c, const config::Offload& offload) {
  c.offload = offload;
  return c;
}

const config::Offload kPlans[] = {
    {.optimizer = OffloadOptimizer::cpu, .subgroup = 1024},
    {.optimizer = OffloadOptimizer::interleaved, .gpu_fraction = "1/2", .subgroup = 512, .slots = 2},
    {.optimizer = OffloadOptimizer::interleaved, .gpu_fraction = "1", .subgroup = 256, .slots = 1},
    {.optimizer = OffloadOptimizer::interleaved,
     .gpu_fraction = "0.7",
     .subgroup = 777,
     .slots = 3,
     .resident = 2,
     .order = OffloadOrder::zigzag},
    {.optimizer = OffloadOptimizer::interleaved, .gpu_fraction = "0", .subgroup = 512, .resident = 5},
    {.optimizer = OffloadOptimizer::interleaved,
     .gpu_fraction = "2/3",
     .subgroup = 512,
     .slots = 2,
     .share_activations = true},
};

struct Ran {
  std::vector<double> losses;
  std::vector<std::byte> state;
  bool operator==(const Ran&) const = default;
};

Ran run_alone(const config::Config& c, DType compute, int64_t steps) {
  Tiny run(c, compute, 2);
  Ran ran;
  for (int64_t n = 1; n <= steps; ++n) ran.losses.push_back(run.step(n).loss);
  ran.state = run.state();
  return ran;
}

class OffloadInEveryType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, OffloadInEveryType, testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& param) { return std::string(name_of(param.param)); });

TEST_P(OffloadInEveryType, EveryPlanGivesTheLossesAndBitsOfNone) {
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama}) {
    const config::Config c = tiny_config(arch);
    const Ran expected = run_alone(c, GetParam(), 6);
    for (const config::Offload& plan : kPlans)
      for (const bool overlap : {true, false}) {
        config::Config with = offloaded(c, plan);
        with.debug.overlap = overlap;
        EXPECT_TRUE(run_alone(with, GetParam(), 6) == expected) << &plan - kPlans << ", overlap " << overlap;
      }
  }
}

/// Megatron over two ranks, two replicas, with and without a split state.
config::Config on_four_ranks(int64_t zero_stage) {
  config::Config c = tiny_config();
  c.model.n_head = c.model.n_kv_head = 2;
  c.model.seq_len = 12;
  c.parallel.tensor = 2;
  c.parallel.data = 2;
  c.parallel.zero_stage = zero_stage;
  return c;
}

TEST(OffloadOnRanks, EveryPlanGivesTheBitsOfNoneWithAndWithoutASplitState) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const Result expected = train(on_four_ranks(0), compute, 4);
    for (const int64_t zero_stage : {0, 1})
      for (const config::Offload& plan : kPlans) {
        const Result now = train(offloaded(on_four_ranks(zero_stage), plan), compute, 4);
        EXPECT_EQ(now.losses, expected.losses);
        EXPECT_EQ(now.norms, expected.norms);
        EXPECT_TRUE(now.state == expected.state) << "zero_stage " << zero_stage << ", plan " << &plan - kPlans;
      }
  }
}

TEST(OffloadOnRanks, BytesOfAStepAreThoseOfNone) {
  for (const int64_t zero_stage : {0, 1}) {
    const Result none = train(on_four_ranks(zero_stage), DType::bf16, 1);
    for (const config::Offload& plan : kPlans) {
      const Result now = train(offloaded(on_four_ranks(zero_stage), plan), DType::bf16, 1);
      EXPECT_EQ(now.measured, none.measured);
      EXPECT_EQ(now.predicted, none.predicted);
    }
  }
}

TEST(OffloadOnRanks, EachRankMayHaveAPlanOfItsOwnAndMessagesMayBeLate) {
  config::Config c = on_four_ranks(1);
  c.parallel.tensor = 1;
  c.parallel.data = 4;
  c.train.micro_batch = 1;
  constexpr int64_t kSteps = 12;
  const Result expected = train(c, DType::bf16, kSteps);
  const char* shares[] = {"0", "1/3", "1", "1/2"};
  Tensors state;
  std::mutex mutex;
  comm::WorldOptions options{.timeout_s = 60};
  options.delay = [n = std::make_shared<std::atomic<uint64_t>>(0)](int) {
    return 2e-4 * static_cast<double>(philox_at(philox_key(3, "delay"), n->fetch_add(1)) % 10);
  };
  comm::run_on_threads(4, options, [&](comm::World& world) {
    const config::Offload own{.optimizer = OffloadOptimizer::interleaved,
                              .gpu_fraction = shares[world.rank()],
                              .subgroup = 128 << world.rank(),
                              .slots = 1 + world.rank() % 3,
                              .order = static_cast<OffloadOrder>(world.rank() % 3)};
    Tiny run(&world, offloaded(c, own), DType::bf16, 1);
    for (int64_t n = 1; n <= kSteps; ++n)
      EXPECT_EQ(run.step(n).loss, expected.losses[static_cast<size_t>(n - 1)]) << "rank " << world.rank();
    const std::lock_guard lock(mutex);
    for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
      collect(state, slice);
  });
  EXPECT_TRUE(state == expected.state);
}

TEST(OffloadOnRanks, AGradientThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  for (const config::Offload& plan : kPlans) {
    const config::Config c = offloaded(on_four_ranks(1), plan);
    std::vector<Tensors> states(2);  // with such a step in between, and without
    for (const bool broken : {false, true}) {
      std::mutex mutex;
      comm::run_on_threads(4, {.timeout_s = 60}, [&](comm::World& world) {
        Tiny run(&world, c, DType::bf16, 1);
        run.step(1);
        if (broken) {
          params::ParamStore& store = run.trainer.store();
          const Tensor weights = store.stored_weight(store.groups()[1].slots.front());
          bf16& weight = *weights.as<bf16>();
          const bf16 before = weight;
          if (world.rank() == 2) weight = bf16(std::numeric_limits<float>::infinity());
          store.weights_changed();
          EXPECT_TRUE(run.step(2).skipped);
          weight = before;
          store.weights_changed();
        }
        EXPECT_FALSE(run.step(2).skipped);
        const std::lock_guard lock(mutex);
        for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
          collect(states[broken ? 1 : 0], slice);
      });
    }
    EXPECT_TRUE(states[0] == states[1]) << "plan " << &plan - kPlans;
  }
}

TEST(OffloadTransport, Bf16GradientsGiveTheSameBitsInEveryPlaceAndWithoutOffload) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    config::Config c = tiny_config();
    const Ran full = run_alone(c, compute, 5);
    c.offload.grad_transport = config::GradTransport::bf16;
    const Ran expected = run_alone(c, compute, 5);
    EXPECT_FALSE(expected == full);
    for (config::Offload plan : kPlans) {
      plan.grad_transport = config::GradTransport::bf16;
      EXPECT_TRUE(run_alone(offloaded(c, plan), compute, 5) == expected);
    }
  }
}

TEST(OffloadEarly, UpdatesUnderTheBackwardPassGiveTheBitsOfNone) {
  for (const auto recompute : {config::Recompute::none, config::Recompute::full}) {
    config::Config c = tiny_config();  // its table is tied
    c.optim.grad_clip = 0;
    c.train.max_skipped_steps = 0;
    c.train.recompute = recompute;
    const Ran expected = run_alone(c, DType::bf16, 6);
    for (config::Offload plan : kPlans) {
      plan.early_update = true;
      Tiny run(offloaded(c, plan), DType::bf16, 2);
      EXPECT_TRUE(run.trainer.offload()->plan().early);
      EXPECT_TRUE(run_alone(offloaded(c, plan), DType::bf16, 6) == expected);
    }
  }
}

TEST(OffloadEarly, IsOffWhereAnUpdateDependsOnTheNorm) {
  for (const auto& [clip, skipped] : {std::pair{1.0, 0}, {0.0, 3}}) {
    config::Config c = offloaded(tiny_config(), {.optimizer = OffloadOptimizer::cpu, .early_update = true});
    c.optim.grad_clip = clip;
    c.train.max_skipped_steps = skipped;
    EXPECT_FALSE(Tiny(c, DType::f32, 1).trainer.offload()->plan().early);
  }
}

TEST(OffloadTraining, TwoHundredStepsLearnAsWithout) {
  config::Config c = tiny_config();
  c.model.dropout = 0;
  const auto losses_of = [&](const config::Offload& plan) {
    Tiny run(offloaded(c, plan), DType::bf16, 2);
    std::vector<double> losses;
    for (int64_t n = 1; n <= 200; ++n) {
      const train::StepWork work{
          .step = n, .first_sample = 0, .adam_step = n, .micro_batches = run.trainer.accumulation(), .lr = 3e-3};
      losses.push_back(run.trainer.step(work, run.batches).loss);
    }
    return losses;
  };
  const std::vector<double> expected = losses_of({});
  EXPECT_LT(expected.back(), 0.5 * std::log(static_cast<double>(kTinyVocab)));
  for (const size_t plan : {0, 1, 3, 5}) EXPECT_EQ(losses_of(kPlans[plan]), expected) << "plan " << plan;
}

int64_t device_memory(Tiny& run) {
  int64_t bytes = 0;
  for (const auto& [category, use] : run.device.memory()) bytes += use.peak;
  return bytes;
}

TEST(OffloadMemory, SlotsInTheMemoryOfActivationsAddNothing) {
  config::Config c = tiny_config();
  int64_t largest = 0, activations = 0;  // subgroup; bytes
  const auto memory_with = [&](const config::Offload& plan) {
    Tiny run(offloaded(c, plan), DType::bf16, 1);
    data::TokenBatch batch;
    run.batches(3, c.train.micro_batch, batch);
    for (int64_t n = 1; n <= 3; ++n) {
      run.step(n);
      run.trainer.loss_sum(batch);  // another program in the same memory
    }
    largest = offload::largest_of(run.trainer.offload()->subgroups());
    activations = run.trainer.arena().capacity();
    return device_memory(run);
  };
  const config::Offload on_host{.optimizer = OffloadOptimizer::cpu, .subgroup = 512};
  const int64_t without = memory_with(on_host);
  config::Offload plan{.optimizer = OffloadOptimizer::interleaved, .gpu_fraction = "1", .subgroup = 512, .slots = 3};
  const int64_t apart = memory_with(plan);
  EXPECT_EQ(apart, without + 3 * 12 * largest);
  plan.share_activations = true;
  EXPECT_EQ(memory_with(plan), without);
  // Slots that are larger than all activations: the block is as large as they are.
  c.model.seq_len = 2;
  c.model.d_ff = 1000;
  plan.subgroup = 1 << 20;
  plan.slots = 8;
  const int64_t rest = memory_with(on_host) - activations, few = activations;
  const int64_t with_large = memory_with(plan);
  EXPECT_EQ(with_large, rest + activations);
  EXPECT_GT(activations, few);
  Tiny run(offloaded(c, plan), DType::bf16, 1);
  EXPECT_EQ(run.trainer.arena().programs().at("optimizer").peak, activations);
}

TEST(OffloadCheckpoint, KnowsNoPlanAndContinuesUnderAnother) {
  const config::Config c = tiny_config();
  const Ran expected = run_alone(c, DType::bf16, 5);
  config::Offload none;
  const config::Offload* plans[] = {&none, &kPlans[0], &kPlans[1], &kPlans[3], &kPlans[5]};
  checkpoint::TempFolder folder;
  std::vector<Tensors> saved;
  for (size_t i = 0; i < std::size(plans); ++i) {
    const auto path = folder.path() / std::to_string(i);
    Tiny first(offloaded(c, *plans[i]), DType::bf16, 1);
    for (int64_t n = 1; n <= 3; ++n) first.step(n);
    checkpoint::CheckpointStore files(path, {}, checkpoint::system_calls(), nullptr);
    checkpoint::Snapshot snapshot;
    snapshot.tensors = checkpoint::slices_to_save(first.trainer.store(), true);
    Tensors& tensors = saved.emplace_back();
    for (const checkpoint::TensorSlice& slice : snapshot.tensors) collect(tensors, slice);
    files.save(snapshot);
    EXPECT_TRUE(tensors == saved.front());
    first.step(4);  // the first goes on as if nothing had been saved
    first.step(5);
    EXPECT_TRUE(first.state() == expected.state);
    for (size_t j = 0; j < std::size(plans); ++j) {
      Tiny second(offloaded(c, *plans[j]), DType::bf16, 2);
      second.step(9);  // what is loaded replaces all of this
      checkpoint::Reader(path).load(checkpoint::slices_to_fill(second.trainer.store(), true), {});
      second.trainer.store().refresh_compute();
      second.step(4);
      second.step(5);
      EXPECT_TRUE(second.state() == expected.state) << i << " to " << j;
    }
  }
}

}  // namespace
}  // namespace trainer::tests
