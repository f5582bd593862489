#include "ops/op_timing.h"

#include <algorithm>
#include <array>

#include "base/philox.h"
#include "tensor/host_copy.h"

namespace trainer::ops {
namespace {

/// Fills a tensor with the numbers that draw(block) returns, four per block.
template <typename Draw>
void fill(device::Device& device, const Tensor& tensor, Draw draw) {
  constexpr int64_t kBlocks = 1 << 14;  // per task
  HostCopy here(device, tensor);
  const Tensor& x = here.tensor();
  const int64_t count = x.count(), blocks = divide_up(count, int64_t{4});
  device.host_pool().parallel_for(divide_up(blocks, kBlocks), [&](int64_t task) {
    for (int64_t block = task * kBlocks; block < std::min(blocks, (task + 1) * kBlocks); ++block) {
      const std::array<double, 4> draws = draw(static_cast<uint64_t>(block));
      for (int64_t i = 4 * block; i < std::min(count, 4 * block + 4); ++i) {
        const double value = draws[static_cast<size_t>(i % 4)];
        if (x.dtype == DType::f64)
          x.as<double>()[i] = value;
        else if (x.dtype == DType::f32)
          x.as<float>()[i] = static_cast<float>(value);
        else
          x.as<bf16>()[i] = bf16(value);
      }
    }
  });
  here.put();
}

}  // namespace

void fill_normal(device::Device& device, const Tensor& tensor, std::string_view name) {
  fill(device, tensor, [key = philox_key(1, name)](uint64_t block) { return philox_normals(key, block); });
}

void fill_uniform(device::Device& device, const Tensor& tensor, std::string_view name) {
  fill(device, tensor, [key = philox_key(1, name)](uint64_t block) {
    std::array<double, 4> draws;
    for (uint64_t i = 0; i < 4; ++i) draws[i] = 2 * (philox_at(key, 4 * block + i) * 0x1p-32) - 1;
    return draws;
  });
}

}  // namespace trainer::ops
