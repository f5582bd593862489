#include "bench/roofline.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/op_timing.h"
#include "tensor/buffer.h"

namespace trainer::bench {

double Roofline::least_seconds(double work_flops, double work_bytes) const {
  return std::max(work_flops / flops, work_bytes / bytes_per_s);
}

double copy_rate(device::Device& device) {
  constexpr int kRepeats = 5;
  int64_t bytes = int64_t{64} << 20;
  if (device.kind() == device::DeviceKind::cuda)
    bytes = std::min<int64_t>(int64_t{256} << 20, device.gpu().memory_bytes / 512 / 4096 * 4096);
  Arena arena(device, Arena::Mode::heap);
  Meter unused;
  Exec ex{device, arena, unused};
  const Buffer from(device, "bench", {bytes / 4}, DType::f32), to(device, "bench", {bytes / 4}, DType::f32);
  ops::fill_uniform(device, from, "x");  // memory that was never written may not be backed by pages yet
  ops::fill_uniform(device, to, "y");
  return 2 * static_cast<double>(bytes) / ops::median_seconds(ex, ops::Copy{from, to}, kRepeats);
}

}  // namespace trainer::bench
