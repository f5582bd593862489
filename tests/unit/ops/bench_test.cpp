#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <vector>

#include "ops/bench_elementwise.h"
#include "ops/bench_gemm.h"
#include "ops/bench_optimizer.h"
#include "ops/peak_windows.h"

namespace trainer::ops {
namespace {

TEST(BenchGemm, MeasuresEveryProductAndAPeakOfTheSameOrder) {
  device::CpuDevice cpu(2);
  Arena arena(cpu, Arena::Mode::heap);
  Meter meter;
  Exec ex{cpu, arena, meter};
  const GemmShape shapes[] = {{192, 128, 160}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const auto rates = bench_gemm(ex, dtype, shapes, 3);
    ASSERT_EQ(rates.size(), 1u);
    PeakWindows windows(cpu, dtype);
    std::vector<double> seen(20);
    windows.run(seen);
    const double peak = *std::max_element(seen.begin(), seen.end()) / 1e9;
    EXPECT_GT(peak, 1) << name_of(dtype);
    for (const double rate : {rates[0].forward, rates[0].dx, rates[0].dw}) {
      EXPECT_GT(rate, 0);
      EXPECT_LT(rate, 4 * peak) << "a rate above any clock change: one of the two counts FLOPs wrongly";
    }
  }
}

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
  std::vector<cpu_set_t> seen(3, before);  // by those of the other threads that come by
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

TEST(BenchOptimizer, MeasuresAdamWBesideItsTraffic) {
  device::CpuDevice cpu(2);
  Arena arena(cpu, Arena::Mode::heap);
  Meter meter;
  Exec ex{cpu, arena, meter};
  const OptimizerRate rate = bench_optimizer(ex, 100003, 3);
  EXPECT_GT(rate.parameters_per_s, 0);
  EXPECT_NEAR(rate.gb_per_s, 28e-9 * rate.parameters_per_s, 1e-9 * rate.gb_per_s);
  EXPECT_GT(rate.share(), 0);
  EXPECT_EQ(meter.of(OpKind::optimizer).calls, 4);  // one to warm up
}

TEST(BenchElementwise, MeasuresEachOperatorBesideACopy) {
  device::CpuDevice cpu(2);
  Arena arena(cpu, Arena::Mode::heap);
  Meter meter;
  Exec ex{cpu, arena, meter};
  for (const DType compute : {DType::f32, DType::bf16}) {
    const ElementwiseRates rates = bench_elementwise(ex, compute, 1 << 20, 3);
    EXPECT_GT(rates.copy_gb_per_s, 0);
    EXPECT_EQ(rates.operators.size(), compute == DType::bf16 ? 12u : 10u);
    for (const ElementwiseRate& rate : rates.operators) {
      EXPECT_GT(rate.seconds, 0) << rate.name;
      EXPECT_NEAR(rate.share * rates.copy_gb_per_s, rate.gb_per_s, 1e-9 * rate.gb_per_s) << rate.name;
      EXPECT_LT(rate.share, 20) << rate.name << " counts more bytes than it moves";
    }
  }
}

}  // namespace
}  // namespace trainer::ops
