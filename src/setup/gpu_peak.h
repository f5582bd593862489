#pragma once
// The peak of a GPU: by its data sheet, or measured with its GEMM library.
#include <optional>
#include <string>

#include "device/device.h"
#include "tensor/tensor.h"

namespace trainer::setup {

/// Returns the dense FLOP/s of a GPU by its data sheet, in fp32 without TF32; none for an unknown GPU.
std::optional<double> data_sheet_peak(const std::string& name, DType compute);

/// Measures the FLOP/s of a GPU's library in GEMMs of large square matrices, the median of several. It is the peak of a
/// GPU whose data sheet is not known.
double best_product_flops(device::Device& device, DType dtype);

}  // namespace trainer::setup
