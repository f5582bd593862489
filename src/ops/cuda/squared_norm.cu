#include "ops/squared_norm.h"

#include "device/cuda/runtime.h"
#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {
namespace {

// The sixteen sums of a block (ops/cpu/squared_norm.isa.cpp) are chains of additions, one per thread. Other blocks keep
// the GPU busy.
constexpr int kSums = 16, kBlocksPerGroup = 4;
constexpr int kAhead = 32;  // loads in flight per chain

/// The vectors of a launch, in the kernel's parameters. Blocks are numbered through: those of part i begin at first[i].
constexpr int kMostParts = 64;
template <typename T>
struct NormParts {
  int count = 0;
  int64_t first[kMostParts] = {}, n[kMostParts] = {};
  const T* x[kMostParts] = {};
  double* blocks[kMostParts] = {};
};

template <typename T>
__global__ void __launch_bounds__(kSums* kBlocksPerGroup)
    square_sum_kernel(const __grid_constant__ NormParts<T> parts) {
  const int lane = static_cast<int>(threadIdx.x) % kSums;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kBlocksPerGroup + threadIdx.x / kSums;
  int part = 0;
  while (part + 1 < parts.count && parts.first[part + 1] <= number) ++part;
  const T* const x = parts.x[part];
  const int64_t n = parts.n[part], block = number - parts.first[part];
  const int64_t first = block * kNormBlock, end = first + kNormBlock < n ? first + kNormBlock : n;
  double sum = 0;
  int64_t i = first + lane;
  for (; i + (kAhead - 1) * kSums < end; i += kAhead * kSums) {
    T next[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) next[k] = x[i + k * kSums];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) sum = fma(static_cast<double>(next[k]), static_cast<double>(next[k]), sum);
  }
  for (; i < end; i += kSums) sum = fma(static_cast<double>(x[i]), static_cast<double>(x[i]), sum);
    // The same tree as on the CPU: lane j adds the sum of lane j + width. Sums in higher lanes are unused.
#pragma unroll
  for (int width = kSums / 2; width > 0; width /= 2) sum += shuffle_xor(sum, width);
  if (lane == 0 && first < n) parts.blocks[part][block] = sum;
}

}  // namespace

void run(Exec& ex, const SquaredNorms& op) {
  for_compute_type(op.parts.front().x.dtype, "squared norm x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    NormParts<T> parts;
    int64_t blocks = 0;
    const auto launch = [&] {
      if (parts.count == 0) return;
      device::cuda::launch(
          device::cuda::stream_of(ex.device),
          {dim3(static_cast<unsigned>(divide_up(blocks, int64_t{kBlocksPerGroup}))), dim3(kSums * kBlocksPerGroup)},
          square_sum_kernel<T>, parts);
      parts.count = 0;
      blocks = 0;
    };
    for (const SquaredNorm& part : op.parts) {
      if (part.x.count() == 0) continue;
      const int at = parts.count++;
      parts.first[at] = blocks;
      parts.n[at] = part.x.count();
      parts.x[at] = part.x.as<T>();
      parts.blocks[at] = part.blocks.as<double>();
      blocks += part.blocks.count();
      if (parts.count == kMostParts) launch();
    }
    launch();
  });
}

}  // namespace trainer::ops::cuda
