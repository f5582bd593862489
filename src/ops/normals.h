#pragma once
// Standard normal draws, vectorised: bitwise identical to philox_normals (base/philox.h) on every instruction set.
#include "base/philox.h"
#include "device/device.h"

namespace trainer::ops {

/// Computes out[4·i … 4·i + 3] = philox_normals(key, first_block + i) for i < blocks, on the calling thread.
void fill_normals(const device::Device& device, PhiloxKey key, uint64_t first_block, int64_t blocks, double* out);

}  // namespace trainer::ops
