// Optimus-2D on ranks that are threads: against one rank, against itself under other schedules, and in other layouts.
#include "rigs/optimus.h"

#include "parallel/tagged.h"
#include "rigs/layout_checks.h"
#include "train/replica_check.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

class Optimus : public testing::TestWithParam<Square> {};

TEST_P(Optimus, FollowsOneRankInDoublePrecisionAndSendsThePredictedBytes) {
  const config::Config c = configure(GetParam());
  Result many = train(c, DType::f64, 20);
  const Result one = train(on_one_rank(c), DType::f64, 20);
  EXPECT_TRUE(many.start == one.start) << "initial weights";
  expect_same_run(many, one);
  for (auto& [axis, operations] : many.predicted)
    for (auto& [operation, bytes] : operations) bytes *= 20;
  EXPECT_EQ(many.measured, many.predicted);
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
    const config::Config c = configure(GetParam());
    const Result usual = train(c, compute, 3);
    const auto same = [&](const char* what, const std::function<void(config::Config&)>& change,
                          const HowToRun& how = {}) {
      SCOPED_TRACE(what);
      config::Config other = c;
      change(other);
      Result result = train(other, compute, 3, how);
      expect_same_bits(result, usual);
      for (auto& [axis, operations] : result.predicted)
        for (auto& [operation, bytes] : operations) bytes *= 3;
      EXPECT_EQ(result.measured, result.predicted);
    };
    same("no overlap", [](config::Config& o) { o.debug.overlap = false; });
    same("late messages", [](config::Config&) {}, {.threads = 2, .delay = 0.001});
    for (const Recompute recompute : {Recompute::selective, Recompute::full})
      same("recomputation", [&](config::Config& o) { o.train.recompute = recompute; });
    same("late messages and recomputation", [](config::Config& o) { o.train.recompute = Recompute::full; },
         {.delay = 0.001});
    same("split optimizer state", [](config::Config& o) { o.parallel.zero_stage = 1; });
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
    config::Config c = configure(s);
    c.model.init_std = 0.02;
    const Result one = train(on_one_rank(c), DType::f32, 50), many = train(c, DType::f32, 50);
    expect_same_gradients(many.gradients, one.gradients, 1e-5);
    EXPECT_NEAR(many.losses[9], one.losses[9], 1e-6 * one.losses[9]);
    EXPECT_NEAR(many.losses[49], one.losses[49], 1e-5 * one.losses[49]);
  }
}

TEST(OptimusNumbers, AreNoWorseThanOneRankInBf16) {
  for (const Square& s : {Square{2}, Square{2, 1, 1, Arch::llama, "paper"}, Square{4},
                          Square{4, 1, 1, Arch::gpt2, "auto", {1, 1}, "gather"}, Square{2, 2},
                          Square{3, 1, 1, Arch::llama, "paper", {1, 1}, "gather"}}) {
    SCOPED_TRACE(s);
    config::Config c = configure(s);
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

/// Steps of batches in which some rows of ranks count far fewer tokens than others.
std::vector<double> masked_steps(Tiny& run, const config::Config& c) {
  const auto length = static_cast<size_t>(c.model.seq_len);
  const auto counts = [](int64_t sample, size_t position) { return sample % 2 == 0 || position % 7 == 3; };
  const train::BatchSource masked = [&](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    run.batches(sample, sequences, out);
    for (size_t r = 0; r < out.weights.size(); ++r)
      out.weights[r] = counts(sample + static_cast<int64_t>(r / length), r % length) ? 1 : 0;
  };
  std::vector<double> found;
  for (int64_t n = 1; n <= 3; ++n) {
    const int64_t first = (n - 1) * c.train.global_batch;
    int64_t unmasked = 0;
    for (int64_t sample = first; sample < first + c.train.global_batch; ++sample)
      for (size_t position = 0; position < length; ++position) unmasked += counts(sample, position);
    const auto outcome = run.trainer.step({.step = n,
                                           .first_sample = first,
                                           .adam_step = n,
                                           .micro_batches = run.trainer.accumulation(),
                                           .lr = 1e-3,
                                           .unmasked_tokens = unmasked},
                                          masked);
    found.insert(found.end(), {outcome.loss, outcome.norm.norm});
  }
  return found;
}

TEST(OptimusLoss, IsAMeanOverAllTokensThatCountHoweverTheyAreSpread) {
  for (const Square& s : {Square{2}, Square{2, 2}, Square{2, 1, 2}, Square{1, 2, 2}}) {
    SCOPED_TRACE(s);
    const config::Config c = configure(s);
    Tiny alone(on_one_rank(c), DType::f64, 1);
    const std::vector<double> expected = masked_steps(alone, c);
    EXPECT_NEAR(expected[0], std::log(37.0), 0.7);
    comm::run_on_threads(static_cast<int>(s.ranks()), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f64, 1);
      EXPECT_LE(distance(masked_steps(run, c), expected), 1e-10);
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
  for (const Square& s : {Square{2, 1, 2}, Square{2, 2}, Square{2, 2, 2, Arch::llama}, Square{1, 2, 2}}) {
    const config::Config c = configure(s);
    comm::run_on_threads(static_cast<int>(s.ranks()), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f32, 1);
      for (int64_t n = 1; n <= 10; ++n) run.step(n);
      train::check_replicas(run.trainer, 10);
      const params::ParamStore& store = run.trainer.store();
      for (const params::Param& param : store.params())
        if (param.name == "blocks.1.norm2.gain" && world.rank() == 1)
          store.groups()[static_cast<size_t>(param.group)].master.tensor().data[param.runs[0].local * 4] ^=
              std::byte{1};
      try {
        train::check_replicas(run.trainer, 11);
        ADD_FAILURE() << "not noticed";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("blocks.1.norm2.gain"), std::string::npos) << e.what();
      }
    });
  }
}

TEST(OptimusNorm, CountsEveryParameterOnce) {
  // With all gradients 1, the square of the norm is the number of parameters: padding and copies count nothing.
  for (const Square& s : {Square{2}, Square{3, 1, 1, Arch::llama}, Square{2, 2}, Square{2, 1, 2, Arch::llama, "paper"},
                          Square{4, 1, 1, Arch::llama, "auto", {2, 2}}}) {
    const config::Config c = configure(s);
    comm::run_on_threads(static_cast<int>(s.ranks()), {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f64, 1);
      params::ParamStore& store = run.trainer.store();
      params::GradSink sink(store);
      sink.prepare(run.device);
      sink.begin_step();
      for (params::Group& group : store.groups()) std::ranges::fill(group.grad.tensor().span<double>(), 0.0);
      for (const params::Param& param : store.params())
        for (const mesh::Run& r : param.runs)
          for (int64_t i = 0; i < r.length; ++i)
            store.groups()[static_cast<size_t>(param.group)].grad.tensor().as<double>()[r.local + i * r.stride] = 1;
      Exec ex = run.trainer.exec();
      const double norm = sink.finish(ex).norm;
      EXPECT_DOUBLE_EQ(norm * norm, static_cast<double>(store.parameter_count())) << to_string(s);
    });
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
