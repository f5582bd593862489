#include "setup/machine.h"

#include <gtest/gtest.h>

#include <atomic>

#include "device/cuda/cuda_device.h"
#include "ops/attention.h"
#include "rigs/messages.h"
#include "rigs/tiny.h"
#include "setup/peak.h"

namespace trainer::tests {
namespace {

config::Config config_on(config::DeviceChoice device, config::Compute compute = config::Compute::automatic) {
  config::Config c = tiny_config();
  c.run.device = device;
  c.precision.compute = compute;
  return c;
}
setup::Machine choose(const config::Config& c) { return setup::choose_machine(c, *comm::solo_world()); }

TEST(Machine, TakesAGpuWhereThereIsOneAndTheCpuOnRequest) {
  const bool gpu = !device::cuda::devices().empty();
  const setup::Machine machine = choose(config_on(config::DeviceChoice::automatic));
  EXPECT_EQ(machine.gpu.has_value(), gpu);
  EXPECT_TRUE(!gpu || machine.compute == DType::bf16);
  EXPECT_GT(machine.memory_limit, 0);
  EXPECT_FALSE(choose(config_on(config::DeviceChoice::cpu)).gpu.has_value());
  EXPECT_FALSE(choose(config_on(config::DeviceChoice::automatic, config::Compute::fp64)).gpu.has_value());
  EXPECT_EQ(setup::make_device(machine)->kind(), gpu ? device::DeviceKind::cuda : device::DeviceKind::cpu);
  EXPECT_EQ(setup::make_dry_device(machine)->kind(), gpu ? device::DeviceKind::cuda : device::DeviceKind::cpu);
}

TEST(Machine, ReportsWhyThereIsNoGpu) {
  if (!device::cuda::devices().empty()) GTEST_SKIP() << "there is one";
  expect_error(Code::config, {"run.device = \"cuda\"", device::cuda::no_device_reason()},
               [] { choose(config_on(config::DeviceChoice::cuda)); });
}

TEST(Machine, ComputesDoublePrecisionOnCpusOnly) {
  EXPECT_THROW(choose(config_on(config::DeviceChoice::cuda, config::Compute::fp64)), Error);
}

/// Returns the lines that choosing a machine logs.
std::string said_when_choosing(const config::Config& c) {
  const Warnings logged;
  choose(c);
  std::string said;
  for (const std::string& line : logged.lines) said += line + "\n";
  return said;
}

TEST(Machine, AttentionIsTheLibrarysWhereItServesAndOursElseWithTheReason) {
  config::Config c = config_on(config::DeviceChoice::automatic);
  const setup::Machine machine = choose(c);
  if (!machine.gpu) {
    c.hardware.attention = config::AttentionKernels::cudnn;
    expect_parts(said_when_choosing(c), {"hardware.attention = \"cudnn\" is ignored"});
    return;
  }
  const auto path = [&] { return ops::attention_path(*setup::make_device(choose(c))); };
  const std::string said = said_when_choosing(c);
  const bool ours = path() == "built-in kernels";
  EXPECT_EQ(said.find("attention uses the built-in kernels: ") != std::string::npos, ours) << said;
  EXPECT_TRUE(ours || path().starts_with("cuDNN ")) << path();
  c.hardware.attention = config::AttentionKernels::own;
  EXPECT_EQ(said_when_choosing(c).find("attention"), std::string::npos);
  EXPECT_EQ(path(), "built-in kernels");
  c.hardware.attention = config::AttentionKernels::cudnn;
  try {  // requires cuDNN, of any version
    EXPECT_TRUE(path().starts_with("cuDNN ")) << path();
  } catch (const Error& error) {
    EXPECT_TRUE(ours);
    EXPECT_EQ(error.code(), Code::config);
    expect_parts(error.what(), {"\"auto\""});
  }
}

TEST(Machine, PeakIsTheUsersTheDataSheetsOrMeasured) {
  config::Config c = config_on(config::DeviceChoice::automatic);
  const setup::Machine machine = choose(c);
  const auto device = setup::make_device(machine);
  const auto world = comm::solo_world();
  const setup::PeakReport found = setup::make_peak(*device, machine.compute, c, *world).report();
  EXPECT_GT(found.flops, 0);
  if (found.origin != "data sheet") {
    EXPECT_EQ(found.origin, "measured");
    EXPECT_NE(found.unit, "");
    EXPECT_EQ(found.windows, machine.gpu ? 0 : setup::PeakTracker::kAtStart);
  }
  c.hardware.peak_tflops = 2;
  const setup::PeakTracker given = setup::make_peak(*device, machine.compute, c, *world);
  EXPECT_EQ(given.flops(), 2e12);
  EXPECT_EQ(given.report().origin, "user");
  EXPECT_EQ(given.report().windows, 0);
}

TEST(Machine, RanksAgreeOnTheLowestInstructionSet) {
  using device::Isa;
  const std::vector<std::vector<Isa>> cases = {{Isa::avx512, Isa::avx2, Isa::amx},
                                               {Isa::amx, Isa::avx512bf16, Isa::avx512bf16},
                                               {Isa::plain, Isa::plain, Isa::plain}};
  for (const std::vector<Isa>& own : cases)
    comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
      EXPECT_EQ(setup::agree_on_isa(world, own[static_cast<size_t>(world.rank())]), *std::ranges::min_element(own));
    });
}

TEST(Machine, RanksThatWouldComputeInDifferentTypesAreNamed) {
  for (const int odd : {-1, 0, 2}) {
    std::atomic<int> refused{0};
    comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
      setup::Machine machine;
      machine.compute = world.rank() == odd ? DType::bf16 : DType::f32;
      try {
        setup::require_one_compute(world, machine);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::plan);
        expect_parts(error.what(), {odd == 0 ? "rank 1 would compute in fp32" : "rank 2 would compute in bf16",
                                    odd == 0 ? "rank 0 in bf16" : "rank 0 in fp32"});
        ++refused;
      }
    });
    EXPECT_EQ(refused, odd < 0 ? 0 : 3);
  }
}

TEST(Machine, RanksWithDifferentKernelsAreNamedInOneWarning) {
  for (const int odd : {-1, 0, 2}) {
    const Warnings logged;
    comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
      setup::Machine machine;
      machine.isa = world.rank() == odd ? device::Isa::avx2 : device::Isa::plain;
      setup::warn_of_different_kernels(world, machine, "muon");
    });
    ASSERT_EQ(logged.lines.size(), odd < 0 ? 0 : 1);
    if (odd < 0) continue;
    expect_parts(
        logged.lines.front(),
        {odd == 0 ? "rank 1 computes with built-in plain kernels" : "rank 2 computes with built-in avx2 kernels",
         odd == 0 ? "rank 0 with built-in avx2" : "rank 0 with built-in plain", "TRAINER_ISA"});
  }
}

}  // namespace
}  // namespace trainer::tests
