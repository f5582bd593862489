#include "train/trainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>

#include "config/strategies.h"
#include "rigs/tiny.h"

namespace {
std::atomic<int64_t> allocations{0};
thread_local bool counted = false;
}  // namespace

// Counts allocations of threads that set `counted`. Not inlined: a compiler that sees free() inlined next to a call of
// operator new warns of a mismatched pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (counted) ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (counted) ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace trainer::tests {
namespace {

class EveryRun : public testing::TestWithParam<std::tuple<config::Arch, DType>> {
 protected:
  config::Arch arch() const { return std::get<0>(GetParam()); }
  DType compute() const { return std::get<1>(GetParam()); }
};

TEST_P(EveryRun, IsTheSameOnOneTwoAndThreeThreadsAndTwice) {
  std::vector<std::byte> first;
  std::vector<double> losses;
  for (const int threads : {1, 2, 3, 2}) {
    Tiny run(tiny_config(arch()), compute(), threads);
    std::vector<double> now;
    for (int64_t n = 1; n <= 4; ++n) now.push_back(run.step(n).loss);
    if (first.empty()) {
      first = run.state();
      losses = now;
    }
    EXPECT_EQ(now, losses) << threads << " threads";
    EXPECT_TRUE(run.state() == first) << threads << " threads";
  }
}

void expect_learns_a_repeated_batch(config::Config c, DType compute, int64_t steps) {
  c.model.dropout = 0;
  Tiny run(c, compute, 2);
  double first = 0, last = 0;
  for (int64_t n = 1; n <= steps; ++n) {
    const auto outcome =
        run.trainer.step({.step = n, .first_sample = 0, .adam_step = n, .micro_batches = 2, .lr = 1e-2}, run.batches);
    ASSERT_FALSE(outcome.skipped);
    if (n == 1) first = outcome.loss;
    last = outcome.loss;
  }
  EXPECT_NEAR(first, std::log(37.0), 1.0);
  EXPECT_LT(last, 0.5 * first);
}
TEST_P(EveryRun, LearnsARepeatedBatch) { expect_learns_a_repeated_batch(tiny_config(arch()), compute(), 60); }
TEST(Trainer, LearnsARepeatedBatchWithExpertsToo) {
  for (const bool shared : {false, true}) expect_learns_a_repeated_batch(tiny_experts(shared), DType::f32, 40);
}

/// Every rank takes `warm` steps and then four that must not allocate.
void expect_no_allocation(int ranks, const config::Config& c, DType compute, int64_t warm = 2) {
  allocations = 0;
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, compute, std::make_unique<device::CpuDevice>(ranks == 1 ? 2 : 1));
    for (int64_t n = 1; n <= warm; ++n) run.step(n);
    counted = true;
    for (int64_t n = warm + 1; n <= warm + 4; ++n) run.step(n);
    counted = false;
  });
  EXPECT_EQ(allocations, 0);
}

TEST_P(EveryRun, AllocatesNothingFromTheThirdStepOn) {
  expect_no_allocation(1, tiny_config(arch()), compute());
  static void* volatile memory;  // so that compilers do not remove the call
  counted = true;
  memory = ::operator new(8);
  counted = false;
  ::operator delete(memory);
  EXPECT_EQ(allocations, 1) << "the counter counts";
}

TEST_P(EveryRun, AllocatesNothingNextToAnOffloadedOptimizerEither) {
  config::Config c = tiny_config(arch());
  c.offload = {.optimizer = config::OffloadOptimizer::interleaved,
               .gpu_fraction = "1/2",
               .subgroup = 512,
               .slots = 2,
               .resident = 1};
  expect_no_allocation(1, c, compute(), 4);
}

TEST_P(EveryRun, AllocatesNothingOnManyRanksEither) {
  config::Config c = tiny_config(arch());
  c.model.n_head = c.model.n_kv_head = 2;
  c.model.seq_len = 12;
  c.parallel.tensor = 2;
  c.parallel.zero_stage = 1;
  expect_no_allocation(4, c, compute());
}

TEST_P(EveryRun, AllocatesNothingWithMuon) {
  config::Config c = tiny_config(arch());
  c.model.n_head = c.model.n_kv_head = 2;
  c.model.seq_len = 12;
  c.optim.name = config::OptimizerName::muon;
  c.muon = {.momentum = 0.95, .steps = 5, .lr_ratio = 1, .weight_decay = 0.1};
  expect_no_allocation(1, c, compute());
  c.parallel.tensor = 2;
  for (const int zero : {0, 1}) {
    c.parallel.zero_stage = zero;
    expect_no_allocation(4, c, compute());
  }
}

TEST_P(EveryRun, AllocatesNothingWhereLayersAreCutInDifferentWays) {
  config::Config c = tiny_config(arch());
  c.model.n_head = c.model.n_kv_head = 4;
  c.model.seq_len = 12;
  c.parallel.strategy = config::StrategyName::autoddl;
  c.parallel.axes = {2, 2};
  c.parallel.layer = {{"-c", "cr", "c-", "ck", "rf", "kk", "rr"}, {"rc", "rc", "-r", "fc", "kf", "k-", "-k"}};
  c.parallel.layer[0].layers = 1;
  c.parallel.head = "rr";
  c.parallel.table = "fv";
  expect_no_allocation(4, c, compute(), 2);
}

TEST(Trainer, AllocatesNothingWithExpertsEither) {
  for (const bool shared : {false, true})
    for (const DType compute : {DType::f64, DType::bf16}) {
      config::Config c = tiny_experts(shared);
      expect_no_allocation(1, c, compute);
      c.train.recompute = config::Recompute::selective;
      c.train.recompute_layers = 1;
      expect_no_allocation(1, c, compute);
    }
}

// The planner searches many shardings.
TEST(Trainer, AllocatesNothingToCheckTheRulesOfAShardingWithExperts) {
  config::Config c = tiny_experts(true);
  c.parallel.strategy = config::StrategyName::fsdp;
  c.parallel.shards = c.parallel.experts = 2;
  c.model.seq_len = 12;
  const sharding::ModelSharding whole = config::sharding_of(c);
  const sharding::Extents fits = config::extents_of(c);
  sharding::ModelSharding copies = whole;
  copies.layers.back().mlp.rows = 0;
  sharding::Extents odd = fits, none = fits;
  odd.n_expert = 7;
  none.n_expert = 0;
  using Rule = sharding::Violation::Rule;
  const auto expect = [](const sharding::ModelSharding& sharding, const sharding::Extents& extents,
                         std::optional<Rule> rule) {
    allocations = 0;
    counted = true;
    const std::optional<sharding::Violation> first = first_violation(sharding, extents);
    counted = false;
    EXPECT_EQ(allocations, 0);
    ASSERT_EQ(first.has_value(), rule.has_value());
    if (first) {
      EXPECT_EQ(first->rule, *rule) << first->text(sharding);
    }
  };
  expect(whole, fits, {});
  expect(whole, odd, Rule::divides);
  expect(whole, none, Rule::no_experts);
  expect(copies, fits, Rule::one_split);
}

INSTANTIATE_TEST_SUITE_P(Trainer, EveryRun,
                         testing::Combine(testing::Values(config::Arch::gpt2, config::Arch::llama),
                                          testing::Values(DType::f64, DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == config::Arch::llama ? "llama_" : "gpt2_") +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

// bf16 is widened or multiplied in pairs or tiles: rounding differs, but training does not.
TEST(Trainer, TrainsAlikeInBf16OnEveryInstructionSet) {
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama}) {
    const config::Config c = tiny_config(arch);
    const auto losses = [&](DType compute, device::Isa isa) {
      Tiny run(c, compute, 2, isa);
      std::vector<double> all;
      for (int64_t n = 1; n <= 10; ++n) all.push_back(run.step(n).loss);
      return all;
    };
    const std::vector<double> exact = losses(DType::f64, device::Isa::plain);
    for (const device::Isa isa : device::kIsas) {
      if (isa > device::detect_isa() || !device::available(isa)) continue;
      const std::vector<double> now = losses(DType::bf16, isa);
      for (size_t n = 0; n < exact.size(); ++n)
        EXPECT_NEAR(now[n], exact[n], 2e-3 * exact[n]) << device::name_of(isa) << ", step " << n + 1;
    }
  }
}

TEST(Trainer, AStopBetweenMicroStepsLeavesTheStateUnchanged) {
  Tiny run(tiny_config(), DType::f32, 1);
  run.step(1);
  const auto before = run.state();
  const auto outcome =
      run.trainer.step({.step = 2, .first_sample = 4, .adam_step = 2, .micro_batches = 2, .lr = 1e-3}, run.batches, [] {
        static int calls = 0;
        return ++calls == 2;
      });
  EXPECT_TRUE(outcome.interrupted);
  EXPECT_TRUE(run.state() == before);
}

}  // namespace
}  // namespace trainer::tests
