// Training with optimizer offload has the same bits as without it, also across checkpoints.
#include <gtest/gtest.h>

#include "rigs/layout_checks.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

struct Ran {
  std::vector<double> losses;
  std::vector<std::byte> state;
  bool operator==(const Ran&) const = default;
};

Ran run_on_one_rank(const config::Config& c, DType compute, int64_t steps) {
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
    const Ran expected = run_on_one_rank(c, GetParam(), 6);
    for (const config::Offload& plan : kOffloadPlans)
      for (const bool overlap : {true, false}) {
        config::Config with = offloaded(c, plan);
        with.debug.overlap = overlap;
        EXPECT_TRUE(run_on_one_rank(with, GetParam(), 6) == expected)
            << &plan - kOffloadPlans << ", overlap " << overlap;
      }
  }
}

TEST(OffloadAccumulation, GradientsOfFourMicroStepsGoToTheHostOnce) {
  config::Config c = tiny_config();
  c.train.global_batch = 4 * c.train.micro_batch;
  const Ran expected = run_on_one_rank(c, DType::bf16, 4);
  for (const config::Offload& plan : kOffloadPlans) {
    Tiny run(offloaded(c, plan), DType::bf16, 2);
    ASSERT_EQ(run.trainer.accumulation(), 4);
    for (int64_t n = 1; n <= 4; ++n) {
      EXPECT_EQ(run.step(n).loss, expected.losses[static_cast<size_t>(n - 1)]);
      const offload::Report report = run.trainer.offload()->report();
      EXPECT_EQ(report.bytes[static_cast<size_t>(offload::OperationKind::flush)], 4 * report.share.host);
    }
    EXPECT_TRUE(run.state() == expected.state);
  }
}

TEST(OffloadTransport, Bf16GradientsGiveTheSameBitsInEveryPlaceAndWithoutOffload) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    config::Config c = tiny_config();
    const Ran full = run_on_one_rank(c, compute, 5);
    c.offload.grad_transport = config::GradTransport::bf16;
    const Ran expected = run_on_one_rank(c, compute, 5);
    EXPECT_FALSE(expected == full);
    for (config::Offload plan : kOffloadPlans) {
      plan.grad_transport = config::GradTransport::bf16;
      EXPECT_TRUE(run_on_one_rank(offloaded(c, plan), compute, 5) == expected);
    }
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
  for (const size_t plan : {0, 1, 3}) EXPECT_EQ(losses_of(kOffloadPlans[plan]), expected) << "plan " << plan;
}

TEST(OffloadCheckpoint, DoesNotDependOnThePlanAndResumesUnderADifferentOne) {
  const config::Config c = tiny_config();
  const Ran expected = run_on_one_rank(c, DType::bf16, 5);
  config::Offload none;
  const config::Offload* plans[] = {&none, &kOffloadPlans[0], &kOffloadPlans[1], &kOffloadPlans[3]};
  checkpoint::TempFolder folder;
  std::vector<Tensors> saved;
  for (size_t i = 0; i < std::size(plans); ++i) {
    const auto path = folder.path() / std::to_string(i);
    Tiny first(offloaded(c, *plans[i]), DType::bf16, 1);
    for (int64_t n = 1; n <= 3; ++n) first.step(n);
    checkpoint::CheckpointStore files(path, {}, system_calls(), nullptr);
    checkpoint::Snapshot snapshot;
    snapshot.tensors = checkpoint::slices_to_save(first.trainer.store(), true);
    Tensors& tensors = saved.emplace_back();
    for (const checkpoint::TensorSlice& slice : snapshot.tensors) collect(tensors, slice);
    files.save(snapshot);
    EXPECT_TRUE(tensors == saved.front());
    first.step(4);  // the first run continues as if nothing had been saved
    first.step(5);
    EXPECT_TRUE(first.state() == expected.state);
    for (size_t j = 0; j < std::size(plans); ++j) {
      Tiny second(offloaded(c, *plans[j]), DType::bf16, 2);
      second.step(9);  // replaced by the loaded state
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
