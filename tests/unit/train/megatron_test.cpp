// Megatron-1D on ranks that are threads: against one rank, against itself under other schedules, and bytes.
#include "rigs/megatron.h"
#include "rigs/layout_checks.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

class Megatron : public testing::TestWithParam<Layout> {};

TEST_P(Megatron, FollowsOneRankInDoublePrecision) { expect_follows_one_rank(configure(GetParam())); }

TEST_P(Megatron, SendsTheBytesThatWerePredicted) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    config::Config c = configure(GetParam());
    c.train.recompute = recompute;
    expect_predicted_bytes(train(c, DType::f32, 2), 2);
  }
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int64_t tensor : {2, 3, 4, 8})
    for (const int64_t data : {1, 2})
      for (const bool sequence_parallel : {false, true})
        for (const Arch arch : {Arch::gpt2, Arch::llama})
          // With one sequence of 24 rows shards lie inside it; with two, three shards of 16 cut one.
          all.push_back({tensor, data, sequence_parallel, arch, tensor == 4 || data == 2 ? 1 : 2});
  // Shared key/value heads with biases: what some ranks hold and others count lies side by side in one slot.
  for (const int64_t tensor : {4, 8})
    for (const int64_t data : {1, 2}) all.push_back({tensor, data, data == 1, Arch::gpt2, 1, 2});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layouts, Megatron, testing::ValuesIn(layouts()),
                         [](const auto& info) { return to_string(info.param); });

class MegatronSchedules : public testing::TestWithParam<Layout> {};

TEST_P(MegatronSchedules, ChangeNoBit) {
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(compute));
    Schedules(configure(GetParam()), compute, 3).same_with_common_changes();
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, MegatronSchedules,
                         testing::Values(Layout{2, 1, false}, Layout{2, 2, true}, Layout{4, 1, true, Arch::llama, 1},
                                         Layout{3, 1, true, Arch::gpt2, 2}, Layout{4, 2, true, Arch::llama, 1},
                                         Layout{8, 2, false, Arch::gpt2, 1, 2}),
                         [](const auto& info) { return to_string(info.param); });

TEST(MegatronNumbers, FollowOneRankInSinglePrecision) {
  for (const Layout& l : {Layout{2, 1, true}, Layout{4, 1, false, Arch::llama, 1}, Layout{4, 2, true}}) {
    SCOPED_TRACE(l);
    expect_follows_one_rank_in_single_precision(configure(l));
  }
}

TEST(MegatronNumbers, AreNoWorseThanOneRankInBf16) {
  for (const Layout& l : {Layout{2, 1, true}, Layout{4, 1, false}, Layout{4, 1, true, Arch::llama, 1}}) {
    SCOPED_TRACE(l);
    expect_no_worse_than_one_rank_in_bf16(configure(l));
  }
}

TEST(MegatronLoss, CountsMaskedRowsAndAnyNumberOfThemAsOneRankDoes) {
  for (const bool sequence_parallel : {false, true}) {
    const config::Config c = configure({4, 1, sequence_parallel, Arch::gpt2, 2});
    const auto masked = [&](Tiny& run) {
      data::TokenBatch batch;
      run.batches(0, c.train.micro_batch, batch);
      for (size_t r = 0; r < batch.weights.size(); ++r) batch.weights[r] = r % 5 == 1 || r > 40 ? 0 : 1;
      return run.trainer.loss_sum(batch);
    };
    Tiny alone(on_one_rank(c), DType::f64, 1);
    const double expected = masked(alone);
    comm::run_on_threads(4, {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f64, 1);
      EXPECT_NEAR(masked(run), expected, 1e-12 * expected);
    });
  }
}

TEST(MegatronLoss, MaskedTokensAreSharedOutUnequallyWithoutATrace) {
  // Of every sequence another share counts: micro-batches and replicas have unequal numbers of tokens.
  const Layout layouts[] = {{1, 1, true, Arch::gpt2, 1}, {2, 2, true, Arch::gpt2, 1}, {4, 2, false, Arch::gpt2, 1}};
  const auto counts = [](int64_t sample, size_t position) {
    return position % 7 < static_cast<size_t>(sample % 4) + 1;
  };
  std::vector<double> expected;
  for (const Layout& l : layouts) {
    const config::Config c = configure(l);
    comm::run_on_threads(static_cast<int>(l.tensor * l.data), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f64, 1);
      const std::vector<double> found = masked_steps(run, c, counts);
      if (world.size() == 1) {
        expected = found;
        EXPECT_NEAR(found[0], std::log(37.0), 0.5);  // a mean over the tokens that count
      }
      EXPECT_LE(distance(found, expected), 1e-10) << to_string(l);
    });
  }
}

TEST(MegatronReplicas, StayEqualAndAreCompared) {
  for (const Layout& l : {Layout{2, 2, true}, Layout{4, 1, false}, Layout{4, 1, true, Arch::llama, 1}})
    expect_replicas_compared(configure(l), 20);
}

TEST(MegatronCheckpoints, AreTheSameTensorsInAnyLayout) {
  const config::Config layouts[] = {configure({2, 1, true}), configure({1, 1, true}),
                                    configure({4, 2, true, Arch::gpt2, 1}), configure({8, 1, false})};
  expect_same_tensors_in(layouts);
}

TEST(MegatronGeneration, ContinuesAsOneRankDoes) {
  for (const bool sequence_parallel : {false, true})
    expect_text_continued_as_on_one_rank(configure({4, 1, sequence_parallel, Arch::llama, 2}));
}

}  // namespace
}  // namespace trainer::tests
