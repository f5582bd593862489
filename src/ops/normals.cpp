#include "ops/normals.h"

#include <algorithm>

#include "ops/cpu/normals_kernels.h"

namespace trainer::ops {

void fill_normals(const device::Device& device, PhiloxKey key, uint64_t first_block, int64_t blocks, double* out) {
  const NormalsKernel& kernel = TRAINER_KERNELS(device.isa(), normals_kernel);
  const int64_t whole = blocks / kernel.blocks * kernel.blocks;
  for (int64_t i = 0; i < whole; i += kernel.blocks)
    kernel.group(key.k0, key.k1, first_block + static_cast<uint64_t>(i), out + 4 * i);
  if (whole == blocks) return;
  double rest[4 * kMostNormalBlocks];
  kernel.group(key.k0, key.k1, first_block + static_cast<uint64_t>(whole), rest);
  std::copy_n(rest, 4 * (blocks - whole), out + 4 * whole);
}

}  // namespace trainer::ops
