#include "setup/run_plan.h"

#include <gtest/gtest.h>

#include "rigs/messages.h"
#include "rigs/muon.h"
#include "rigs/tiny.h"

namespace trainer::tests {
namespace {

class PlanOfARun : public testing::TestWithParam<std::tuple<config::Arch, DType>> {};

TEST_P(PlanOfARun, HasTheMemoryThatTheDeviceHolds) {
  const DType compute = std::get<1>(GetParam());
  for (const config::Config& c :
       {tiny_config(std::get<0>(GetParam())), with_muon(tiny_config(std::get<0>(GetParam())))}) {
    Tiny run(c, compute, 2);
    run.step(1);
    const setup::Machine machine{
        .threads = 2, .isa = run.device.isa(), .compute = compute, .compute_reason = {}, .memory_limit = 0};
    const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
    EXPECT_EQ(plan.total - plan.memory.at("host"), run.device.memory_total());
    EXPECT_GT(plan.executed_flops, 0);
    // The update does the same work as in the first step, and none of it counts as the model's.
    run.trainer.meter().reset();
    run.step(2);
    const Meter& done = run.trainer.meter();
    EXPECT_EQ(plan.update.flops, done.of(OpKind::orthogonalize).flops);
    EXPECT_EQ(plan.update.bytes, done.of(OpKind::orthogonalize).bytes + done.of(OpKind::optimizer).bytes +
                                     done.of(OpKind::grad_norm).bytes);
    EXPECT_EQ(plan.update.sent, 0) << "one rank";
    EXPECT_EQ(done.matmul_flops(), plan.executed_flops * static_cast<double>(run.trainer.accumulation()));
  }
}

INSTANTIATE_TEST_SUITE_P(RunPlan, PlanOfARun,
                         testing::Combine(testing::Values(config::Arch::gpt2, config::Arch::llama),
                                          testing::Values(DType::f64, DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == config::Arch::llama ? "llama_" : "gpt2_") +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

TEST(RunPlan, MemoryThatDoesNotFitIsRejectedWithAChangeThatDoes) {
  config::Config c = tiny_config();
  c.train.micro_batch = 4;
  setup::Machine machine{
      .threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}, .memory_limit = 0};
  config::Config small = c;
  small.train.micro_batch = 1;
  small.train.recompute = config::Recompute::full;
  machine.memory_limit = setup::plan_run(small, kTinyVocab, machine, true).total;
  const auto require = [&] {
    setup::require_memory(setup::plan_run(c, kTinyVocab, machine, true), c, kTinyVocab, machine);
  };
  c.train.recompute = config::Recompute::full;
  expect_error(Code::plan, {"train.micro_batch = 1 with train.recompute = \"full\" fits"}, require);
  c.train.recompute = config::Recompute::none;
  c.model.n_layer = 8;
  small = c;
  small.train.recompute = config::Recompute::selective;
  small.train.recompute_layers = 3;
  machine.memory_limit = setup::plan_run(small, kTinyVocab, machine, true).total;
  expect_error(Code::plan, {"micro_batch = 4", "train.recompute = \"selective\" and train.recompute_layers = 3 fits"},
               require);
  machine.memory_limit = 1000;
  EXPECT_THROW(require(), Error);
}

TEST(RunPlan, SamplesThatDoNotFitAreNamed) {
  config::Config c = tiny_config();
  c.data.tokenizer = "train";
  c.train.sample_prompt = "x";
  c.train.sample_interval = -1;  // one sample, after the last step
  setup::Machine machine{
      .threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}, .memory_limit = 0};
  const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
  const config::Model& m = c.model;
  EXPECT_EQ(plan.memory.at("kv_cache"), 2 * m.n_layer * m.seq_len * m.n_kv_head * m.d_model / m.n_head * 4);
  machine.memory_limit = plan.total - plan.memory.at("kv_cache");
  expect_error(Code::plan, {"train.sample_interval = 0 fits", "train.sample_prompt", "kv_cache"},
               [&] { setup::require_memory(plan, c, kTinyVocab, machine); });
  c.train.sample_interval = 0;
  EXPECT_NO_THROW(setup::require_memory(setup::plan_run(c, kTinyVocab, machine, true), c, kTinyVocab, machine));
}

TEST(RunPlan, CountsTheCopyOfBackgroundSavesWhereItFits) {
  config::Config c = tiny_config();
  setup::Machine machine{
      .threads = 1, .isa = device::detect_isa(), .compute = DType::bf16, .compute_reason = {}, .memory_limit = 0};
  const int64_t without = setup::plan_run(c, kTinyVocab, machine, true).total;
  c.checkpoint.async = true;
  setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
  const int64_t copy = plan.memory.at(setup::kSnapshotMemory), fp32 = 3 * 4 * plan.parameters;
  EXPECT_GT(copy, fp32);  // weights and both moments, with tables
  EXPECT_LT(copy, fp32 + fp32 / 4);
  EXPECT_EQ(plan.total, without + copy);
  machine.memory_limit = plan.total;
  EXPECT_EQ(setup::plan_run(c, kTinyVocab, machine, true).total, without + copy);
  --machine.memory_limit;
  plan = setup::plan_run(c, kTinyVocab, machine, true);
  EXPECT_FALSE(plan.memory.contains(setup::kSnapshotMemory));
  EXPECT_EQ(plan.total, without);
  EXPECT_FALSE(setup::plan_run(c, kTinyVocab, machine, false).memory.contains(setup::kSnapshotMemory));
}

TEST(RunPlan, AllRanksRejectWhenOneOfThemIsShortOfMemory) {
  config::Config c = tiny_config();
  c.parallel.data = 3;
  c.train.global_batch *= 3;
  comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
    setup::Machine machine{.threads = 1, .isa = device::detect_isa(), .compute = DType::f32, .compute_reason = {}};
    machine.ranks = 3;
    machine.rank = world.rank();
    const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
    machine.memory_limit = world.rank() == 1 ? plan.total - 1 : 4 * plan.total;
    const Error error = error_of(
        [&] { world.control().run_on_all_ranks([&] { setup::require_memory(plan, c, kTinyVocab, machine); }); });
    EXPECT_EQ(error.code(), Code::plan);
    EXPECT_EQ(error.scope(), Scope::all_ranks);
    double together = 1;  // the ranks can still communicate
    world.control().sum({&together, 1});
    EXPECT_EQ(together, 3);
  });
}

TEST(RunPlan, FewestRecomputedLayersAreFoundFromAnyGuess) {
  for (int64_t all = 1; all <= 20; ++all)
    for (int64_t guess = 0; guess <= all; ++guess)
      for (int64_t enough = 0; enough <= all; ++enough) {
        int64_t tried = 0, last = all;
        const auto fits = [&](const config::Config& c) {
          EXPECT_EQ(c.train.recompute, config::Recompute::selective);
          ++tried;
          if (c.train.recompute_layers < enough) return false;
          last = c.train.recompute_layers;
          return true;
        };
        EXPECT_EQ(setup::fewest_recomputed_layers({}, 0, all, guess, fits), enough) << all << " " << guess;
        EXPECT_EQ(last, enough) << "the last one that fits";
        EXPECT_LE(tried, 9) << all << " " << guess << " " << enough;
        if (guess == enough) EXPECT_LE(tried, 2);
      }
}

}  // namespace
}  // namespace trainer::tests
