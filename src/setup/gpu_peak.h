#pragma once
// The peak of a GPU: from its data sheet, or measured with its GEMM library.
#include <optional>
#include <string>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer::setup {

/// Returns the dense FLOP/s of a GPU from its data sheet, in fp32 without TF32; empty for an unknown GPU.
std::optional<double> data_sheet_peak(const std::string& name, DType compute);

/// Measures several GEMMs of large square matrices with a GPU's library, and returns their median FLOP/s: the peak of a
/// GPU whose data sheet is not known.
double best_product_flops(device::Device& device, DType dtype);

}  // namespace trainer::setup
