#include "setup/gpu_peak.h"

#include <gtest/gtest.h>

namespace trainer::setup {
namespace {

TEST(GpuPeak, IsThatOfTheDataSheet) {
  EXPECT_EQ(data_sheet_peak("NVIDIA H200", DType::bf16), 989.4e12);
  EXPECT_EQ(data_sheet_peak("NVIDIA H100 80GB HBM3", DType::bf16), 989.4e12);
  EXPECT_EQ(data_sheet_peak("NVIDIA H100 PCIe", DType::bf16), 756e12);
  EXPECT_EQ(data_sheet_peak("NVIDIA A100-SXM4-40GB", DType::f32), 19.5e12);
  EXPECT_EQ(data_sheet_peak("NVIDIA L40S", DType::bf16), 362e12);
  EXPECT_EQ(data_sheet_peak("NVIDIA L4", DType::bf16), 121e12);
  EXPECT_EQ(data_sheet_peak("NVIDIA A1000", DType::bf16), std::nullopt);
}

}  // namespace
}  // namespace trainer::setup
