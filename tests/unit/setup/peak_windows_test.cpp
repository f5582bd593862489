#include "setup/peak_windows.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace trainer::setup {
namespace {

TEST(PeakWindows, RunOnEveryThreadAndGiveTheCpusBack) {
  device::CpuDevice cpu(3);  // more threads than some machines have cores
  const auto own = [] {
    cpu_set_t mask{};
    sched_getaffinity(0, sizeof(mask), &mask);
    return mask;
  };
  const cpu_set_t before = own();
  PeakWindows windows(cpu, DType::f32);
  std::vector<double> rates(5, -1.0);
  windows.run(rates);
  for (const double rate : rates) EXPECT_GT(rate, 0);
  cpu_set_t after = own();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  std::vector<cpu_set_t> seen(3, before);  // by the other threads that take part
  cpu.host_pool().parallel_for(64, [&](int64_t, int worker) { seen[static_cast<size_t>(worker)] = own(); });
  for (const cpu_set_t& mask : seen) EXPECT_TRUE(CPU_EQUAL(&before, &mask));
}

TEST(PeakWindows, UseTheUnitOfTheInstructionSetAndTheComputeType) {
  EXPECT_EQ(peak_unit(device::Isa::amx, DType::bf16).name, "AMX tiles");
  EXPECT_EQ(peak_unit(device::Isa::amx, DType::f32).name, "AVX-512 fma");
  EXPECT_EQ(peak_unit(device::Isa::avx512bf16, DType::bf16).name, "AVX512-BF16 dot products");
  EXPECT_EQ(peak_unit(device::Isa::avx512bf16, DType::bf16).operands, DType::bf16);
  EXPECT_EQ(peak_unit(device::Isa::avx512, DType::bf16).name, "AVX-512 fma");  // widened
  EXPECT_EQ(peak_unit(device::Isa::avx2, DType::bf16).name, "AVX2 fma");       // widened
  EXPECT_EQ(peak_unit(device::Isa::avx2, DType::bf16).operands, DType::f32);
  EXPECT_EQ(peak_unit(device::Isa::avx2, DType::f64).operands, DType::f64);
  EXPECT_EQ(peak_unit(device::Isa::plain, DType::f32).name, "plain multiply and add");
}

}  // namespace
}  // namespace trainer::setup
