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

TEST(OffloadCheckpoint, KnowsNoPlanAndContinuesUnderAnother) {
  const config::Config c = tiny_config();
  const Ran expected = run_alone(c, DType::bf16, 5);
  config::Offload none;
  const config::Offload* plans[] = {&none, &kPlans[0], &kPlans[1], &kPlans[3]};
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
