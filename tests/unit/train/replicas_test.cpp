// Data parallelism and ZeRO-1 on ranks that are threads, compared with one rank, bit for bit with each other, and in
// the bytes that they send.
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

struct Case {
  int replicas = 1;
  int64_t zero_stage = 0, micro_batch = 2;
  int threads = 1;
  double delay = 0;
};

config::Config configure(const Case& how, config::Arch arch) {
  config::Config c = tiny_config(arch);
  c.train.global_batch = 36;  // divisible in every case
  c.train.micro_batch = how.micro_batch;
  c.optim.grad_clip = 0.1;
  c.parallel.data = how.replicas;
  c.parallel.zero_stage = how.zero_stage;
  return c;
}

Result train(const Case& how, DType compute, config::Arch arch, int64_t steps) {
  return tests::train(configure(how, arch), compute, steps, {.threads = how.threads, .delay = how.delay});
}

class Replicas : public testing::TestWithParam<std::tuple<int, int64_t, config::Arch>> {
 protected:
  Case how() const { return {.replicas = std::get<0>(GetParam()), .micro_batch = std::get<1>(GetParam())}; }
  config::Arch arch() const { return std::get<2>(GetParam()); }
};

TEST_P(Replicas, FollowOneRankInDoublePrecision) {
  const Result one = train({.replicas = 1, .micro_batch = 2}, DType::f64, arch(), 20);
  const Result many = train(how(), DType::f64, arch(), 20);
  expect_same_run(many, one);
}

TEST_P(Replicas, SplittingTheOptimizerStateChangesNoBit) {
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    Case split = how();
    split.zero_stage = 1;
    const Result whole = train(how(), compute, arch(), 4), parts = train(split, compute, arch(), 4);
    SCOPED_TRACE(name_of(compute));
    expect_same_bits(parts, whole);
    EXPECT_LE(parts.optimizer_bytes, whole.optimizer_bytes / how().replicas + 64 * 64) << name_of(compute);
  }
}

TEST_P(Replicas, ThreadsAndTimingChangeNoBit) {
  Case slow = how();
  slow.threads = 2;
  slow.delay = 0.002;
  slow.zero_stage = 1;
  Case fast = how();
  fast.zero_stage = 1;
  const Result first = train(fast, DType::f32, arch(), 3), second = train(slow, DType::f32, arch(), 3);
  expect_same_bits(first, second);
}

TEST_P(Replicas, SendTheBytesThatWerePredicted) {
  for (const int64_t stage : {0, 1}) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      Case c = how();
      c.zero_stage = stage;
      const int64_t steps = 3;
      Result result = train(c, compute, arch(), steps);
      for (auto& [axis, operations] : result.predicted)
        for (auto& [operation, bytes] : operations) bytes *= steps;
      EXPECT_EQ(result.measured, result.predicted);
      if (c.replicas == 1) {
        EXPECT_TRUE(result.measured.empty());
        continue;
      }
      // Closed forms: gradients in f32, weights in the compute type, whole groups.
      device::DryDevice device(1);
      const auto world = comm::dry_world(c.replicas);
      train::Trainer trainer(device, *world, configure(c, arch()), kTinyVocab, compute);
      int64_t reduced = 0, scattered = 0, gathered = 0;
      for (const params::Group& group : trainer.store().groups()) {
        reduced += comm::wire_elements(CommOp::all_reduce, c.replicas, group.elements) * 4;
        scattered += (c.replicas - 1) * group.elements * 4;
        gathered += (c.replicas - 1) * group.elements * size_of(compute);
      }
      if (stage == 0) {
        EXPECT_EQ(result.measured.at("data").at("all_reduce"), steps * reduced);
      } else {
        EXPECT_EQ(result.measured.at("data").at("reduce_scatter"), steps * scattered);
        EXPECT_EQ(result.measured.at("data").at("all_gather"), steps * gathered);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Replicas,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Values(1, 3),
                                          testing::Values(config::Arch::gpt2, config::Arch::llama)),
                         [](const auto& info) {
                           return format("{}Replicas{}Each{}", std::get<0>(info.param), std::get<1>(info.param),
                                         std::get<2>(info.param) == config::Arch::gpt2 ? "Gpt2" : "Llama");
                         });

TEST(ReplicasOf, ANonFiniteGradientOnOneRankStopsTheUpdateOnAll) {
  Case how{.replicas = 3};
  const config::Config c = configure(how, config::Arch::gpt2);
  comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    // A weight that only the second replica's rows use cannot be made non-finite by itself; its copy on one replica
    // can.
    if (world.rank() == 1) run.trainer.store().weight(1).as<float>()[0] = INFINITY;
    const auto before = run.state();
    const auto outcome = run.step(1);
    EXPECT_TRUE(outcome.skipped);
    EXPECT_FALSE(outcome.norm.is_finite());
    EXPECT_FALSE(outcome.norm.bad_tensor.empty());
    EXPECT_TRUE(run.state() == before) << "rank " << world.rank();
    std::string name = outcome.norm.bad_tensor;
    world.control().broadcast(name);
    EXPECT_EQ(name, outcome.norm.bad_tensor);
  });
}

TEST(ReplicasOf, AStopOnOneRankStopsAllAtTheSameMicroStep) {
  Case how{.replicas = 2, .micro_batch = 1};
  const config::Config c = configure(how, config::Arch::gpt2);
  static std::atomic<int> calls;
  calls = 0;
  comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, DType::f32, 1);
    const auto stop_at_third = world.first() ? [] { return false; } : [] { return ++calls == 3; };
    const auto outcome =
        run.trainer.step({.step = 1, .adam_step = 1, .micro_batches = run.trainer.accumulation(), .lr = 1e-3},
                         run.batches, stop_at_third);
    EXPECT_TRUE(outcome.interrupted);
  });
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace trainer::tests
