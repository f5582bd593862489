#include "setup/offload_memory.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

using config::OffloadOptimizer;

setup::Machine machine_of(DType compute, int ranks = 1, bool gpu = true) {
  setup::Machine machine{
      .threads = 2, .isa = device::detect_isa(), .compute = compute, .memory_limit = int64_t{1} << 40, .ranks = ranks};
  if (gpu)
    machine.gpu =
        device::cuda::Facts{.name = "test", .multiprocessors = 4, .capability = 90, .shared_per_block = 227 << 10};
  return machine;
}

/// Tests with a dry GPU. Programs built without CUDA cannot compute the memory of its operators.
struct OffloadMemoryOfAGpu : testing::Test {
  void SetUp() override {
    if (!device::cuda::version()) GTEST_SKIP() << "built without CUDA";
  }
};

TEST_F(OffloadMemoryOfAGpu, TheTableReportsWhatFits) {
  const config::Config c = tiny_config();
  setup::Machine machine = machine_of(DType::bf16);
  const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
  const std::string all_fit = setup::offload_table(plan, c, kTinyVocab, machine);
  for (const char* row : {"  none ", "  cpu ", "  interleaved, 3 slots "})
    EXPECT_NE(all_fit.find(row), std::string::npos) << all_fit;
  EXPECT_NE(all_fit.find("fits without offload: yes"), std::string::npos) << all_fit;
  EXPECT_EQ(all_fit.find("does not fit"), std::string::npos) << all_fit;
  machine.memory_limit = plan.total - 1;
  const std::string few = setup::offload_table(plan, c, kTinyVocab, machine);
  EXPECT_NE(few.find("fits without offload: no"), std::string::npos) << few;
  EXPECT_NE(few.find("does not fit  as configured"), std::string::npos) << few;
}

TEST(OffloadMemory, TheTableIsOfOptimizersThatCanBeOffloaded) {
  config::Config c = tiny_config();
  const setup::Machine machine = machine_of(DType::bf16, 1, false);
  const auto table = [&] {
    return setup::offload_table(setup::plan_run(c, kTinyVocab, machine, true), c, kTinyVocab, machine);
  };
  EXPECT_NE(table().find("  cpu "), std::string::npos);
  c.optim.name = config::OptimizerName::muon;
  EXPECT_EQ(table(), "");
}

/// Returns the message of a rejection; empty: nothing is rejected.
std::string refusal(const config::Config& c, const setup::Machine& machine) {
  try {
    setup::require_memory(setup::plan_run(c, kTinyVocab, machine, true), c, kTinyVocab, machine);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::plan);
    return error.what();
  }
}

/// Expects that a change suggested by a rejection fits.
void expect_fits(const config::Config& c, const setup::Machine& machine) { EXPECT_EQ(refusal(c, machine), ""); }

TEST_F(OffloadMemoryOfAGpu, SlotsThatDoNotFitTheDeviceAreRejectedWithTheKeysToChange) {
  config::Config c = offloaded(
      tiny_config(), {.optimizer = OffloadOptimizer::interleaved, .gpu_fraction = "1/2", .subgroup = 1024, .slots = 4});
  setup::Machine machine = machine_of(DType::bf16);
  const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
  machine.memory_limit = plan.total;
  expect_fits(c, machine);
  config::Config fewer = c;
  fewer.offload.slots = 1;
  machine.memory_limit = setup::plan_run(fewer, kTinyVocab, machine, true).total;
  const std::string first = refusal(c, machine);
  EXPECT_NE(first.find("offload.slots = 1 fits"), std::string::npos) << first;
  expect_fits(fewer, machine);
  fewer.offload.optimizer = OffloadOptimizer::cpu;
  machine.memory_limit = setup::plan_run(fewer, kTinyVocab, machine, true).total;
  const std::string second = refusal(c, machine);
  EXPECT_NE(second.find("offload.optimizer = \"cpu\" fits"), std::string::npos) << second;
  c.model.d_model = 384;
  c.offload.subgroup = 1 << 19;
  c.offload.slots = 1;
  config::Config smaller = c;
  smaller.offload.subgroup = 1 << 18;
  machine.memory_limit = setup::plan_run(smaller, kTinyVocab, machine, true).total;
  const std::string third = refusal(c, machine);
  EXPECT_NE(third.find("offload.subgroup = 262144 fits"), std::string::npos) << third;
  EXPECT_NE(third.find("the largest part is"), std::string::npos) << third;
  expect_fits(smaller, machine);
}

TEST_F(OffloadMemoryOfAGpu, TooLittleHostMemoryIsRejectedWithNumbersAndTheKeysToChange) {
  config::Config c = offloaded(tiny_config(), {.optimizer = OffloadOptimizer::cpu, .subgroup = 1 << 20});
  setup::Machine machine = machine_of(DType::bf16);
  const setup::RunPlan plan = setup::plan_run(c, kTinyVocab, machine, true);
  const int64_t needed = setup::memory_of(plan).host + plan.memory.at("host");
  machine.host_limit = needed;
  machine.memory_limit = plan.total + (1 << 16);  // so that `none` does not fit the device
  expect_fits(c, machine);
  machine.host_limit = needed - 1;
  const std::string said = refusal(c, machine);
  EXPECT_NE(said.find(format("needs {} B of host memory, but only {} B", needed, needed - 1)), std::string::npos)
      << said;
  EXPECT_NE(said.find("the largest part is host"), std::string::npos) << said;
  EXPECT_NE(said.find("offload.grad_transport = \"bf16\""), std::string::npos) << said;
  machine.memory_limit = int64_t{1} << 40;
  EXPECT_NE(refusal(c, machine).find("offload.optimizer = \"none\" fits"), std::string::npos) << refusal(c, machine);
  machine.memory_limit = plan.total + (1 << 16);
  machine.host_limit = 1000;
  EXPECT_NE(refusal(c, machine).find("the optimizer state fits neither on the device nor in host memory"),
            std::string::npos)
      << refusal(c, machine);
}

TEST_F(OffloadMemoryOfAGpu, ReplicasThatCouldShardTheStateAreAdvisedTo) {
  config::Config c = offloaded(tiny_config(), {.optimizer = OffloadOptimizer::cpu, .subgroup = 4096});
  c.parallel.data = 4;
  c.train.global_batch = 8;
  setup::Machine machine = machine_of(DType::bf16, 4);
  config::Config split = c;
  split.parallel.zero_stage = 1;
  const setup::RunPlan plan = setup::plan_run(split, kTinyVocab, machine, true);
  machine.host_limit = setup::memory_of(plan).host + plan.memory.at("host") + 8192;
  const std::string said = refusal(c, machine);
  EXPECT_NE(said.find("parallel.zero_stage = 1 fits"), std::string::npos) << said;
  expect_fits(split, machine);
}

TEST_F(OffloadMemoryOfAGpu, ARunThatDoesNotFitItsGpuIsAdvisedToOffload) {
  config::Config c = tiny_config();
  c.train.recompute = config::Recompute::full;
  c.train.micro_batch = 1;
  setup::Machine machine = machine_of(DType::bf16);
  config::Config on_host = offloaded(c, {.optimizer = OffloadOptimizer::cpu});
  machine.memory_limit = setup::plan_run(on_host, kTinyVocab, machine, true).total;
  const std::string said = refusal(c, machine);
  EXPECT_NE(said.find("offload.optimizer = \"cpu\" fits"), std::string::npos) << said;
  expect_fits(on_host, machine);
}

TEST(OffloadMemory, ARunOnACpuIsAdvisedToLeaveItsStateOnTheDevice) {
  const config::Config c = offloaded(tiny_config(), {.optimizer = OffloadOptimizer::cpu});
  setup::Machine machine = machine_of(DType::bf16, 1, false);
  const int64_t none = setup::plan_run(tiny_config(), kTinyVocab, machine, true).total;
  machine.memory_limit = none + (1 << 14);
  const std::string said = refusal(c, machine);
  EXPECT_NE(said.find("offload.optimizer = \"none\" fits"), std::string::npos) << said;
  machine.memory_limit = none / 2;
  EXPECT_EQ(refusal(c, machine).find("offload."), std::string::npos) << refusal(c, machine);
}

}  // namespace
}  // namespace trainer::tests
