#include "measure/op_timing.h"

#include <algorithm>
#include <array>

#include "base/philox.h"
#include "tensor/host_copy.h"

namespace trainer::measure {
namespace {

/// Fills blocks [first, end) of four draws.
void fill_blocks(const Tensor& tensor, PhiloxKey key, int64_t first, int64_t end) {
  const int64_t count = tensor.count();
  for (int64_t block = first; block < end; ++block) {
    const std::array<double, 4> draws = philox_normals(key, static_cast<uint64_t>(block));
    for (int64_t i = 4 * block; i < std::min(count, 4 * block + 4); ++i) {
      const double value = draws[static_cast<size_t>(i % 4)];
      switch (tensor.dtype) {
        case DType::f64:
          tensor.as<double>()[i] = value;
          break;
        case DType::f32:
          tensor.as<float>()[i] = static_cast<float>(value);
          break;
        default:
          tensor.as<bf16>()[i] = bf16(value);
      }
    }
  }
}

}  // namespace

void fill_normal(device::Device& device, const Tensor& tensor, std::string_view name) {
  constexpr int64_t kBlocks = 1 << 14;  // per task
  HostCopy here(device, tensor);
  const PhiloxKey key = philox_key(1, name);
  const int64_t blocks = divide_up(tensor.count(), int64_t{4});
  device.host_pool().parallel_for(divide_up(blocks, kBlocks), [&](int64_t task) {
    fill_blocks(here.tensor(), key, task * kBlocks, std::min(blocks, (task + 1) * kBlocks));
  });
  here.put();
}

void fill_uniform(device::Device& device, const Tensor& x, std::string_view name) {
  constexpr int64_t kDraws = 1 << 20;  // per task
  const PhiloxKey key = philox_key(1, name);
  HostCopy here(device, x);
  const int64_t count = x.count();
  device.host_pool().parallel_for(divide_up(count, kDraws), [&](int64_t task) {
    for (int64_t i = task * kDraws; i < std::min(count, (task + 1) * kDraws); ++i) {
      const double value = 2 * (philox_at(key, static_cast<uint64_t>(i)) * 0x1p-32) - 1;
      if (x.dtype == DType::f64)
        here.tensor().as<double>()[i] = value;
      else if (x.dtype == DType::f32)
        here.tensor().as<float>()[i] = static_cast<float>(value);
      else
        here.tensor().as<bf16>()[i] = bf16(value);
    }
  });
  here.put();
}

}  // namespace trainer::measure
