#pragma once
// The peak of a GPU: from its data sheet, or measured with its GEMM library.
#include <optional>
#include <string>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer::setup {

/// Returns the dense FLOP/s of a GPU according to its data sheet, in fp32 without TF32; empty for an unknown GPU.
std::optional<double> data_sheet_peak(const std::string& name, DType compute);

/// Measures the FLOP/s of large square GEMMs with the GPU's library, the median of several runs. It serves as the peak
/// of a GPU whose data sheet is not known.
double best_product_flops(device::Device& device, DType dtype);

}  // namespace trainer::setup
