#include "ops/fingerprint.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kAhead = 8;  // loads in flight per thread

/// The parts of a launch, in the kernel's parameters.
constexpr int kMostParts = 64;
template <typename Bits>
struct Parts {
  const Bits* x[kMostParts] = {};
  int64_t rows[kMostParts] = {}, cols[kMostParts] = {}, pitch[kMostParts] = {}, stride[kMostParts] = {};
  int64_t first[kMostParts] = {}, step[kMostParts] = {};
  uint64_t* sums = nullptr;
};

template <typename Bits>
__global__ void __launch_bounds__(kThreads) fingerprint_kernel(const __grid_constant__ Parts<Bits> parts) {
  __shared__ uint64_t shared[kThreads / 32];
  const auto part = static_cast<int>(blockIdx.x);
  const Bits* const x = parts.x[part];
  const int64_t cols = parts.cols[part], pitch = parts.pitch[part], stride = parts.stride[part];
  const int64_t items = parts.rows[part] * cols, first = parts.first[part], step = parts.step[part];
  uint64_t sum = 0;
  for (int64_t begin = threadIdx.x; begin < items; begin += kAhead * kThreads) {
    Bits bits[kAhead];
    uint64_t number[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t item = begin + k * kThreads, r = item < cols ? 0 : quotient(item, cols), c = item - r * cols;
      bits[k] = item < items ? x[r * pitch + c * stride] : Bits{0};
      number[k] = static_cast<uint64_t>(first + r * step + c);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) sum += static_cast<uint64_t>(bits[k]) * (2 * number[k] + 1);
  }
  sum = block_sum(sum, shared, kThreads / 32);
  if (threadIdx.x == 0) parts.sums[part] = sum;
}

}  // namespace

void run(Exec& ex, const Fingerprints& op) {
  for_compute_type(op.parts.front().x.dtype, "fingerprint x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
    Parts<Bits> parts;
    int count = 0;
    int64_t launched = 0;
    const auto launch = [&] {
      if (count == 0) return;
      parts.sums = reinterpret_cast<uint64_t*>(op.sums.as<int64_t>()) + launched;
      device::cuda::launch(device::cuda::stream_of(ex.device), {dim3(static_cast<unsigned>(count)), dim3(kThreads)},
                           fingerprint_kernel<Bits>, parts);
      launched += count;
      count = 0;
    };
    for (const Fingerprint& part : op.parts) {
      parts.x[count] = reinterpret_cast<const Bits*>(part.x.data);
      parts.rows[count] = part.rows;
      parts.cols[count] = part.cols;
      parts.pitch[count] = part.pitch;
      parts.stride[count] = part.stride;
      parts.first[count] = part.first;
      parts.step[count] = part.step;
      if (++count == kMostParts) launch();
    }
    launch();
  });
}

}  // namespace trainer::ops::cuda
