// Optimus-2D on ranks that are threads: against one rank, against itself under other schedules, and in other layouts.
#include "rigs/optimus.h"

#include "parallel/tagged.h"
#include "rigs/layout_checks.h"

namespace trainer::tests {
namespace {

using config::Arch;

class Optimus : public testing::TestWithParam<Square> {};

TEST_P(Optimus, FollowsOneRankInDoublePrecisionAndSendsThePredictedBytes) {
  expect_follows_one_rank(configure(GetParam()));
}

/// Squares, alone, in depth and as replicas; tiles that cut the axes, beside heads that ranks share.
std::vector<Square> squares() {
  std::vector<Square> all;
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    for (const char* stationary : {"auto", "paper"}) {
      for (const Square& s : {Square{2}, Square{3}, Square{2, 1, 2}, Square{2, 2}}) {
        all.push_back(s);
        all.back().arch = arch;
        all.back().stationary = stationary;
        if (s.data == 1 && s.depth == 1) {
          all.push_back(all.back());
          all.back().panels = "gather";
        }
      }
    }
    all.push_back({2, 2, 2, arch});
    all.push_back({1, 2, 2, arch});
    all.push_back({4, 1, 1, arch, "auto", {2, 2}});
  }
  all.push_back({1, 3});
  all.push_back({1, 1, 2});
  all.push_back({2, 1, 1, Arch::gpt2, "auto", {2, 1}});
  all.push_back({4, 1, 1, Arch::llama, "paper", {1, 2}});
  all.push_back({4, 1, 1, Arch::llama, "auto", {1, 1}, "gather"});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Squares, Optimus, testing::ValuesIn(squares()),
                         [](const auto& info) { return to_string(info.param); });

class OptimusSchedules : public testing::TestWithParam<Square> {};

TEST_P(OptimusSchedules, ChangeNoBit) {
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(compute));
    Schedules(configure(GetParam()), compute, 3).same_with_common_changes();
  }
}
INSTANTIATE_TEST_SUITE_P(Squares, OptimusSchedules,
                         testing::Values(Square{2}, Square{2, 1, 1, Arch::gpt2, "auto", {1, 1}, "gather"},
                                         Square{2, 1, 1, Arch::llama, "paper"}, Square{2, 2},
                                         Square{2, 1, 2, Arch::llama}, Square{3, 1, 1, Arch::llama}),
                         [](const auto& info) { return to_string(info.param); });

TEST(OptimusNumbers, FollowOneRankInSinglePrecision) {
  for (const Square& s : {Square{2}, Square{3, 1, 1, Arch::gpt2, "paper"}, Square{2, 2, 1, Arch::llama},
                          Square{2, 1, 1, Arch::gpt2, "auto", {1, 1}, "gather"}}) {
    SCOPED_TRACE(s);
    expect_follows_one_rank_in_single_precision(configure(s));
  }
}

TEST(OptimusNumbers, AreNoWorseThanOneRankInBf16) {
  for (const Square& s : {Square{2}, Square{2, 1, 1, Arch::llama, "paper"}, Square{4},
                          Square{4, 1, 1, Arch::gpt2, "auto", {1, 1}, "gather"}, Square{2, 2},
                          Square{3, 1, 1, Arch::llama, "paper", {1, 1}, "gather"}}) {
    SCOPED_TRACE(s);
    expect_no_worse_than_one_rank_in_bf16(configure(s));
  }
}

TEST(OptimusLoss, IsAMeanOverAllTokensThatCountHoweverTheyAreSpread) {
  for (const Square& s : {Square{2}, Square{2, 2}, Square{2, 1, 2}, Square{1, 2, 2}}) {
    SCOPED_TRACE(s);
    const config::Config c = configure(s);
    // Some rows of ranks count far fewer tokens than others.
    const auto counts = [](int64_t sample, size_t position) { return sample % 2 == 0 || position % 7 == 3; };
    Tiny alone(on_one_rank(c), DType::f64, 1);
    const std::vector<double> expected = masked_steps(alone, c, counts);
    EXPECT_NEAR(expected[0], std::log(37.0), 0.7);
    comm::run_on_threads(static_cast<int>(s.ranks()), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f64, 1);
      EXPECT_LE(distance(masked_steps(run, c, counts), expected), 1e-10);
    });
  }
}

TEST(OptimusLoss, DoesNotDependOnThePaddingOfTheVocabulary) {
  config::Config c = configure(Square{2});
  const Result usual = train(c, DType::f64, 3);
  c.model.vocab_multiple = 64;
  const Result wider = train(c, DType::f64, 3);
  EXPECT_TRUE(wider.start == usual.start) << "initial weights";
  for (size_t n = 0; n < usual.losses.size(); ++n) EXPECT_NEAR(wider.losses[n], usual.losses[n], 1e-12);
}

TEST(OptimusBatches, OfSeveralMicroBatchesAreOneOfAll) {
  for (const Square& s : {Square{2}, Square{2, 2}, Square{2, 1, 1, Arch::llama, "paper"}}) {
    SCOPED_TRACE(s);
    config::Config c = configure(s);
    c.model.dropout = 0.1;
    c.train.global_batch = 4 * c.train.micro_batch;
    const Result four = train(c, DType::f64, 3);
    c.train.micro_batch = c.train.global_batch;
    const Result one = train(c, DType::f64, 3);
    expect_same_gradients(four.gradients, one.gradients, 1e-12);
    for (size_t n = 0; n < one.losses.size(); ++n) EXPECT_NEAR(four.losses[n], one.losses[n], 1e-12);
  }
}

TEST(OptimusGather, IsATableOfTags) {
  for (const char* stationary : {"auto", "paper"})
    for (const DType compute : {DType::f64, DType::bf16}) {
      const config::Config c = configure(Square{2, 1, 2, Arch::llama, stationary, {1, 1}, "gather"});
      HowToRun by_tags;
      by_tags.factory.strategy = [&](const config::Config& of, mesh::Mesh& mesh, params::ParamStore& store) {
        const bool paper = std::string_view(stationary) == "paper";
        const parallel::LayerTags layer{"rc", "rc", "rc", "fc", "fc", "fc", paper ? "fc" : "fk"};
        return std::make_unique<parallel::Tagged>(mesh, store, parallel::TagTable{{layer, layer}, "rc", "fv"}, of);
      };
      const Result named = train(c, compute, 3), table = train(c, compute, 3, by_tags);
      expect_same_bits(named, table);
      expect_same_counts(named, table);
    }
}

TEST(OptimusReplicas, StayEqualAndAreCompared) {
  for (const Square& s : {Square{2, 1, 2}, Square{2, 2}, Square{2, 2, 2, Arch::llama}, Square{1, 2, 2}})
    expect_replicas_compared(configure(s), 10);
}

TEST(OptimusNorm, CountsEveryParameterOnce) {
  for (const Square& s : {Square{2}, Square{3, 1, 1, Arch::llama}, Square{2, 2}, Square{2, 1, 2, Arch::llama, "paper"},
                          Square{4, 1, 1, Arch::llama, "auto", {2, 2}}}) {
    SCOPED_TRACE(s);
    expect_norm_counts_every_parameter_once(configure(s));
  }
}

TEST(OptimusCheckpoints, AreTheSameTensorsInAnyLayout) {
  config::Config megatron = on_one_rank(configure(Square{2}));
  megatron.parallel.tensor = 4;
  megatron.train.micro_batch = 4;
  config::Config axonn = on_one_rank(configure(Square{2}));
  axonn.parallel.strategy = "axonn-4d";
  axonn.parallel.grid = {2, 2, 2};
  const config::Config layouts[] = {configure(Square{2}),
                                    configure(Square{2, 1, 1, Arch::gpt2, "auto", {1, 1}, "gather"}),
                                    configure(Square{4}),
                                    on_one_rank(configure(Square{2})),
                                    configure(Square{3, 1, 1, Arch::gpt2, "paper"}),
                                    megatron,
                                    configure(Square{2, 2, 2, Arch::gpt2, "auto"}),
                                    axonn,
                                    configure(Square{2, 1, 2, Arch::gpt2, "paper", {2, 1}})};
  expect_same_tensors_in(layouts);
}

TEST(OptimusGeneration, ContinuesAsOneRankDoes) {
  for (const Square& s : {Square{2}, Square{2, 2, 1, Arch::llama, "paper"}, Square{3, 1, 1, Arch::llama},
                          Square{2, 1, 1, Arch::gpt2, "auto", {1, 1}, "gather"}}) {
    SCOPED_TRACE(s);
    expect_text_continued_as_on_one_rank(configure(s));
  }
}

}  // namespace
}  // namespace trainer::tests
