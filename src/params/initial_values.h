#pragma once
// Initial values of parameters.
#include <cstdint>
#include <vector>

#include "params/param_table.h"
#include "tensor/tensor.h"

namespace trainer::params {

/// Fills the parameter's elements in `flat`, which is host memory of a compute type; `runs` has their local offsets. A
/// value depends only on seed, name and global index, so every layout starts with the same weights. The device's host
/// threads draw the values.
void initialize(device::Device& device, const Param& param, const std::vector<mesh::Run>& runs, const Tensor& flat,
                uint64_t seed);

}  // namespace trainer::params
