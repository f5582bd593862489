// AxoNN-4D on ranks that are threads: against one rank, against itself under other schedules, and in other layouts.
#include "rigs/axonn.h"

#include "rigs/layout_checks.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

class Axonn : public testing::TestWithParam<Grid> {};

TEST_P(Axonn, FollowsOneRankInDoublePrecisionAndSendsThePredictedBytes) {
  expect_follows_one_rank(configure(GetParam()));
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
  const auto compare = [&](DType compute, const config::Config& c) {
    const Schedules runs(c, compute, 5);
    const auto only = [](bool reduce, bool scatter, bool gather) {
      return [=](config::Config& o) {
        o.parallel.overlap_all_reduce = reduce;
        o.parallel.overlap_reduce_scatter = scatter;
        o.parallel.overlap_all_gather = gather;
      };
    };
    runs.same("no overlap", only(false, false, false));
    runs.same("sums alone", only(true, false, false));
    runs.same("scatters alone", only(false, true, false));
    runs.same("gathers alone", only(false, false, true));
    for (const int64_t layers : {1, 2}) {
      runs.same("kept weights", [&](config::Config& o) { o.parallel.cache_layers = layers; });
      runs.same("kept weights and recomputation", [&](config::Config& o) {
        o.parallel.cache_layers = layers;
        o.train.recompute = Recompute::full;
      });
    }
    runs.same_with_common_changes();
  };
  config::Config c = configure(GetParam());
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(compute));
    compare(compute, c);
  }
  // Beside one or two micro-batches a step: three, with a first, one between, and a last.
  c.train.global_batch = 3 * GetParam().z * GetParam().data;
  SCOPED_TRACE("three micro-batches");
  compare(DType::f32, c);
}
INSTANTIATE_TEST_SUITE_P(Grids, AxonnSchedules,
                         testing::Values(Grid{2, 2, 2, 1}, Grid{1, 2, 2, 2, Arch::llama}, Grid{4, 1, 2, 1, Arch::llama},
                                         Grid{1, 1, 4, 1}, Grid{3, 2, 1, 1}),
                         [](const auto& info) { return to_string(info.param); });

TEST(AxonnNumbers, FollowOneRankInSinglePrecision) {
  for (const Grid& g : {Grid{2, 2, 2, 1}, Grid{1, 4, 1, 1}, Grid{4, 1, 2, 1, Arch::llama}}) {
    SCOPED_TRACE(g);
    expect_follows_one_rank_in_single_precision(configure(g));
  }
}

TEST(AxonnNumbers, AreNoWorseThanOneRankInBf16) {
  for (const Grid& g : {Grid{2, 2, 1, 1}, Grid{1, 4, 1, 1}, Grid{1, 4, 2, 1, Arch::llama}, Grid{2, 2, 2, 1}}) {
    SCOPED_TRACE(g);
    expect_no_worse_than_one_rank_in_bf16(configure(g));
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
  for (const Grid& g : {Grid{2, 2, 2, 1}, Grid{2, 1, 2, 2, Arch::llama}}) expect_replicas_compared(configure(g), 10);
}

TEST(AxonnNorm, CountsEveryParameterOnce) {
  for (const Grid& g : {Grid{2, 2, 2, 1}, Grid{3, 2, 2, 1}, Grid{2, 1, 3, 2}, Grid{4, 1, 1, 1, Arch::llama}}) {
    SCOPED_TRACE(g);
    expect_norm_counts_every_parameter_once(configure(g));
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
