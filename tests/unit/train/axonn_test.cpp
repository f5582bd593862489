// AxoNN-4D on ranks that are threads: against one rank, against itself under other schedules, and in other layouts.
#include "rigs/axonn.h"

#include "rigs/layout_checks.h"
#include "train/replica_check.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

class Axonn : public testing::TestWithParam<Grid> {};

TEST_P(Axonn, FollowsOneRankInDoublePrecisionAndSendsThePredictedBytes) {
  const config::Config c = configure(GetParam());
  Result many = train(c, DType::f64, 20);
  const Result one = train(on_one_rank(c), DType::f64, 20);
  EXPECT_TRUE(many.start == one.start) << "initial weights";
  expect_same_run(many, one);
  for (auto& [axis, operations] : many.predicted)
    for (auto& [operation, bytes] : operations) bytes *= 20;
  EXPECT_EQ(many.measured, many.predicted);
}

/// All ways to make 2, 4 and 8 ranks of a replica and replicas, and several of 16, with odd ones.
std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const int64_t ranks : {2, 4, 8})
    for (int64_t x = 1; x <= ranks; x *= 2)
      for (int64_t y = 1; x * y <= ranks; y *= 2)
        for (int64_t z = 1; x * y * z <= ranks; z *= 2)
          if (const int64_t data = ranks / (x * y * z); data <= 2)
            for (const Arch arch : {Arch::gpt2, Arch::llama})
              for (const char* order : {"yxzd", "xyzd"})
                if (std::string_view(order) == "yxzd" || (x > 1 && y > 1 && arch == Arch::gpt2))
                  all.push_back({x, y, z, data, arch, order});
  for (const Grid& g : {Grid{3, 1, 2, 1}, Grid{1, 3, 2, 1}, Grid{3, 2, 1, 1}, Grid{2, 3, 1, 2}, Grid{3, 1, 1, 2}})
    all.push_back(g);
  for (const Grid& g : {Grid{4, 2, 2, 1}, Grid{2, 2, 2, 2}, Grid{2, 4, 2, 1}, Grid{2, 2, 4, 1, Arch::llama},
                        Grid{4, 2, 1, 2, Arch::llama, "zxyd"}})
    all.push_back(g);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Grids, Axonn, testing::ValuesIn(grids()),
                         [](const auto& info) { return to_string(info.param); });

class AxonnSchedules : public testing::TestWithParam<Grid> {};

TEST_P(AxonnSchedules, ChangeNoBit) {
  constexpr int kSteps = 5;
  const auto compare = [&](DType compute, const config::Config& c, bool all) {
    const Result usual = train(c, compute, kSteps);
    const auto same = [&](const char* what, const std::function<void(config::Config&)>& change,
                          const HowToRun& how = {}) {
      SCOPED_TRACE(what);
      config::Config other = c;
      change(other);
      Result result = train(other, compute, kSteps, how);
      expect_same_bits(result, usual);
      for (auto& [axis, operations] : result.predicted)
        for (auto& [operation, bytes] : operations) bytes *= kSteps;
      EXPECT_EQ(result.measured, result.predicted);
    };
    const auto only = [](bool reduce, bool scatter, bool gather) {
      return [=](config::Config& o) {
        o.parallel.overlap_all_reduce = reduce;
        o.parallel.overlap_reduce_scatter = scatter;
        o.parallel.overlap_all_gather = gather;
      };
    };
    same("no overlap", only(false, false, false));
    same("sums alone", only(true, false, false));
    same("scatters alone", only(false, true, false));
    same("gathers alone", only(false, false, true));
    same("late messages", [](config::Config&) {}, {.threads = 2, .delay = 0.001});
    for (const int64_t layers : {1, 2}) {
      same("kept weights", [&](config::Config& o) { o.parallel.cache_layers = layers; });
      same("kept weights and recomputation", [&](config::Config& o) {
        o.parallel.cache_layers = layers;
        o.train.recompute = Recompute::full;
      });
    }
    same("recomputation", [](config::Config& o) { o.train.recompute = Recompute::full; });
    if (!all) return;
    same("nothing behind anything", [](config::Config& o) { o.debug.overlap = false; });
    same("selective recomputation", [](config::Config& o) { o.train.recompute = Recompute::selective; });
    same("late messages and recomputation", [](config::Config& o) { o.train.recompute = Recompute::full; },
         {.delay = 0.001});
    same("split optimizer state", [](config::Config& o) { o.parallel.zero_stage = 1; });
  };
  config::Config c = configure(GetParam());
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(compute));
    compare(compute, c, true);
  }
  // Beside one or two micro-batches a step: three, with a first, one between, and a last.
  c.train.global_batch = 3 * GetParam().z * GetParam().data;
  SCOPED_TRACE("three micro-batches");
  compare(DType::f32, c, false);
}
INSTANTIATE_TEST_SUITE_P(Grids, AxonnSchedules,
                         testing::Values(Grid{2, 2, 2, 1}, Grid{1, 2, 2, 2, Arch::llama}, Grid{4, 1, 2, 1, Arch::llama},
                                         Grid{1, 1, 4, 1}, Grid{3, 2, 1, 1}),
                         [](const auto& info) { return to_string(info.param); });

TEST(AxonnNumbers, FollowOneRankInSinglePrecision) {
  for (const Grid& g : {Grid{2, 2, 2, 1}, Grid{1, 4, 1, 1}, Grid{4, 1, 2, 1, Arch::llama}}) {
    SCOPED_TRACE(g);
    config::Config c = configure(g);
    c.model.init_std = 0.02;
    const Result one = train(on_one_rank(c), DType::f32, 50), many = train(c, DType::f32, 50);
    expect_same_gradients(many.gradients, one.gradients, 1e-5);
    EXPECT_NEAR(many.losses[9], one.losses[9], 1e-6 * one.losses[9]);
    EXPECT_NEAR(many.losses[49], one.losses[49], 1e-5 * one.losses[49]);
  }
}

TEST(AxonnNumbers, AreNoWorseThanOneRankInBf16) {
  for (const Grid& g : {Grid{2, 2, 1, 1}, Grid{1, 4, 1, 1}, Grid{1, 4, 2, 1, Arch::llama}, Grid{2, 2, 2, 1}}) {
    SCOPED_TRACE(g);
    config::Config c = configure(g);
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

TEST(AxonnNumbers, WeightGradientsMayBeSummedInBf16) {
  config::Config c = configure(Grid{1, 2, 4, 1});
  c.model.init_std = 0.02;
  const Result exact = train(on_one_rank(c), DType::f64, 1), usual = train(c, DType::bf16, 10);
  c.parallel.rs_dtype = "bf16";
  const Result rounded = train(c, DType::bf16, 10);
  EXPECT_EQ(rounded.measured.at("z").at("reduce_scatter") * 2, usual.measured.at("z").at("reduce_scatter"));
  EXPECT_EQ(rounded.measured.at("z").at("all_gather"), usual.measured.at("z").at("all_gather"));
  for (const auto& [name, values] : exact.gradients) {
    if (is_key_bias(name)) continue;
    EXPECT_LE(relative_error(rounded.gradients.at(name), values), 0.02) << name;
  }
  EXPECT_FALSE(rounded.state == usual.state);
  EXPECT_NEAR(rounded.losses[9], usual.losses[9], 2e-3 * usual.losses[9]);
  // Nothing to round elsewhere.
  expect_same_bits(train(c, DType::f32, 2), [&] {
    config::Config other = c;
    other.parallel.rs_dtype = "fp32";
    return train(other, DType::f32, 2);
  }());
}

TEST(AxonnReplicas, StayEqualAndAreCompared) {
  for (const Grid& g : {Grid{2, 2, 2, 1}, Grid{2, 1, 2, 2, Arch::llama}}) {
    const config::Config c = configure(g);
    comm::run_on_threads(static_cast<int>(g.ranks()), {.timeout_s = 60}, [&](comm::World& world) {
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

TEST(AxonnNorm, CountsEveryParameterOnce) {
  // With all gradients 1, the square of the norm is the number of parameters: padding of vocabulary and pieces, and
  // copies, count nothing.
  for (const Grid& g : {Grid{2, 2, 2, 1}, Grid{3, 2, 2, 1}, Grid{2, 1, 3, 2}, Grid{4, 1, 1, 1, Arch::llama}}) {
    const config::Config c = configure(g);
    comm::run_on_threads(static_cast<int>(g.ranks()), {.timeout_s = 60}, [&](comm::World& world) {
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
      EXPECT_DOUBLE_EQ(norm * norm, static_cast<double>(store.parameter_count())) << to_string(g);
    });
  }
}

TEST(AxonnCheckpoints, AreTheSameTensorsInAnyLayout) {
  config::Config megatron = on_one_rank(configure(Grid{}));
  megatron.parallel.tensor = 4;
  megatron.train.micro_batch = 4;
  const config::Config layouts[] = {configure(Grid{2, 2, 2, 1}), on_one_rank(configure(Grid{})),
                                    configure(Grid{3, 1, 2, 1}), megatron,
                                    configure(Grid{1, 2, 2, 2, Arch::gpt2, "xyzd"})};
  expect_same_tensors_in(layouts);
}

TEST(AxonnGeneration, ContinuesAsOneRankDoes) {
  for (const Grid& g : {Grid{2, 2, 2, 1}, Grid{4, 1, 2, 1, Arch::llama}}) {
    SCOPED_TRACE(g);
    expect_text_continued_as_on_one_rank(configure(g));
  }
}

}  // namespace
}  // namespace trainer::tests
