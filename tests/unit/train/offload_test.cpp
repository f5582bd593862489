// Training with the optimizer's state on the host: the same bits as without, and across checkpoints.
#include <gtest/gtest.h>

#include "rigs/layout_checks.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

using config::OffloadOptimizer;
using config::OffloadOrder;

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
    for (const config::Offload& plan : kOffloadPlans)
      for (const bool overlap : {true, false}) {
        config::Config with = offloaded(c, plan);
        with.debug.overlap = overlap;
        EXPECT_TRUE(run_alone(with, GetParam(), 6) == expected) << &plan - kOffloadPlans << ", overlap " << overlap;
      }
  }
}

TEST(OffloadAccumulation, GradientsOfFourMicroStepsGoToTheHostOnce) {
  config::Config c = tiny_config();
  c.train.global_batch = 4 * c.train.micro_batch;
  const Ran expected = run_alone(c, DType::bf16, 4);
  for (const config::Offload& plan : kOffloadPlans) {
    Tiny run(offloaded(c, plan), DType::bf16, 2);
    ASSERT_EQ(run.trainer.accumulation(), 4);
    for (int64_t n = 1; n <= 4; ++n) {
      EXPECT_EQ(run.step(n).loss, expected.losses[static_cast<size_t>(n - 1)]);
      const offload::Report report = run.trainer.offload()->report();
      EXPECT_EQ(report.bytes[static_cast<size_t>(offload::Kind::flush)], 4 * report.share.host);
    }
    EXPECT_TRUE(run.state() == expected.state);
  }
}

TEST(OffloadTransport, Bf16GradientsGiveTheSameBitsInEveryPlaceAndWithoutOffload) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    config::Config c = tiny_config();
    const Ran full = run_alone(c, compute, 5);
    c.offload.grad_transport = config::GradTransport::bf16;
    const Ran expected = run_alone(c, compute, 5);
    EXPECT_FALSE(expected == full);
    for (config::Offload plan : kOffloadPlans) {
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
    for (config::Offload plan : kOffloadPlans) {
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
  for (const size_t plan : {0, 1, 3, 5}) EXPECT_EQ(losses_of(kOffloadPlans[plan]), expected) << "plan " << plan;
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
  const config::Offload* plans[] = {&none, &kOffloadPlans[0], &kOffloadPlans[1], &kOffloadPlans[3], &kOffloadPlans[5]};
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
