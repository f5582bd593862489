// Megatron-1D on ranks that are threads: against one rank, against itself under other schedules, and bytes.
#include "rigs/megatron.h"
#include "rigs/layout_checks.h"
#include "train/replica_check.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

class Megatron : public testing::TestWithParam<Layout> {};

TEST_P(Megatron, FollowsOneRankInDoublePrecision) {
  const config::Config c = configure(GetParam());
  const Result one = train(on_one_rank(c), DType::f64, 20), many = train(c, DType::f64, 20);
  EXPECT_TRUE(many.start == one.start) << "initial weights";
  expect_same_run(many, one);
}

TEST_P(Megatron, SendsTheBytesThatWerePredicted) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    config::Config c = configure(GetParam());
    c.train.recompute = recompute;
    Result result = train(c, DType::f32, 2);
    for (auto& [axis, operations] : result.predicted)
      for (auto& [operation, bytes] : operations) bytes *= 2;
    EXPECT_EQ(result.measured, result.predicted);
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
    const config::Config c = configure(GetParam());
    const Result usual = train(c, compute, 3);
    config::Config other = c;
    other.debug.overlap = false;
    expect_same_bits(train(other, compute, 3), usual);
    expect_same_bits(train(c, compute, 3, {.threads = 2, .delay = 0.001}), usual);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      other = c;
      other.train.recompute = recompute;
      expect_same_bits(train(other, compute, 3), usual);
    }
    other = c;
    other.parallel.zero_stage = 1;
    expect_same_bits(train(other, compute, 3), usual);
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
    config::Config c = configure(l);
    c.model.init_std = 0.02;
    const Result one = train(on_one_rank(c), DType::f32, 50), many = train(c, DType::f32, 50);
    expect_same_gradients(many.gradients, one.gradients, 1e-5);
    EXPECT_NEAR(many.losses[9], one.losses[9], 1e-6 * one.losses[9]);
    EXPECT_NEAR(many.losses[49], one.losses[49], 1e-5 * one.losses[49]);
  }
}

TEST(MegatronNumbers, AreNoWorseThanOneRankInBf16) {
  for (const Layout& l : {Layout{2, 1, true}, Layout{4, 1, false}, Layout{4, 1, true, Arch::llama, 1}}) {
    SCOPED_TRACE(l);
    config::Config c = configure(l);
    c.model.init_std = 0.02;
    const Result exact = train(on_one_rank(c), DType::f64, 1);
    const Result one = train(on_one_rank(c), DType::bf16, 10), many = train(c, DType::bf16, 10);
    for (const auto& [name, values] : exact.gradients) {
      if (is_key_bias(name)) continue;
      EXPECT_LE(relative_error(many.gradients.at(name), values), 1.5 * relative_error(one.gradients.at(name), values))
          << name;
    }
    EXPECT_NEAR(many.losses[9], one.losses[9], 2e-3 * one.losses[9]);
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
      const auto length = static_cast<size_t>(c.model.seq_len);
      const train::BatchSource masked = [&](int64_t sample, int64_t sequences, data::TokenBatch& out) {
        run.batches(sample, sequences, out);
        for (size_t r = 0; r < out.weights.size(); ++r)
          out.weights[r] = counts(sample + static_cast<int64_t>(r / length), r % length) ? 1 : 0;
      };
      std::vector<double> found;
      for (int64_t n = 1; n <= 3; ++n) {
        int64_t unmasked = 0;
        for (int64_t sample = (n - 1) * c.train.global_batch; sample < n * c.train.global_batch; ++sample)
          for (size_t position = 0; position < length; ++position) unmasked += counts(sample, position);
        const auto outcome = run.trainer.step({.step = n,
                                               .first_sample = (n - 1) * c.train.global_batch,
                                               .adam_step = n,
                                               .micro_batches = run.trainer.accumulation(),
                                               .lr = 1e-3,
                                               .unmasked_tokens = unmasked},
                                              masked);
        found.insert(found.end(), {outcome.loss, outcome.norm.norm});
      }
      if (world.size() == 1) {
        expected = found;
        EXPECT_NEAR(found[0], std::log(37.0), 0.5);  // a mean over the tokens that count
      }
      EXPECT_LE(distance(found, expected), 1e-10) << to_string(l);
    });
  }
}

TEST(MegatronReplicas, StayEqualAndAreCompared) {
  for (const Layout& l : {Layout{2, 2, true}, Layout{4, 1, false}, Layout{4, 1, true, Arch::llama, 1}}) {
    const config::Config c = configure(l);
    comm::run_on_threads(static_cast<int>(l.tensor * l.data), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f32, 1);
      for (int64_t n = 1; n <= 20; ++n) run.step(n);
      train::check_replicas(run.trainer, 20);
      // A gain on one rank goes wrong by one bit.
      const params::ParamStore& store = run.trainer.store();
      for (const params::Param& param : store.params())
        if (param.name == "blocks.1.norm2.gain" && world.rank() == 1)
          store.groups()[static_cast<size_t>(param.group)].master.tensor().data[param.runs[0].local * 4] ^=
              std::byte{1};
      try {
        train::check_replicas(run.trainer, 21);
        ADD_FAILURE() << "not noticed";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("blocks.1.norm2.gain"), std::string::npos) << e.what();
      }
    });
  }
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
