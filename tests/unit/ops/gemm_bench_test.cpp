#include <gtest/gtest.h>

#include "ops/bench_gemm.h"

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
    const double peak = measured_peak_flops(cpu, dtype) / 1e9;
    EXPECT_GT(peak, 1) << name_of(dtype);
    for (const double rate : {rates[0].forward, rates[0].dx, rates[0].dw}) {
      EXPECT_GT(rate, 0);
      EXPECT_LT(rate, 4 * peak) << "a rate above any clock change: one of the two counts FLOPs wrongly";
    }
  }
}

}  // namespace
}  // namespace trainer::ops
