#include "ops/adamw.h"

#include <bit>

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

__device__ inline uint32_t mixed(uint32_t h) {
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  return h ^ (h >> 16);
}

/// The arithmetic is canonical: fmaf, *, / and sqrtf round once each. No product here is added to anything, so that the
/// compiler cannot fuse a multiplication with an addition.
template <typename M>
struct AdamWFormula {
  float b1, b2, ob1, ob2, correction, eps, step, decay, scale;
  bool rounds;    // rounds the gradient to bf16
  uint32_t salt;  // for rounding second moments to bf16
  __device__ void operator()(float (&x)[5]) const {
    auto& [p, m, v, g, compute] = x;
    const float gradient = (rounds ? static_cast<float>(bf16(g)) : g) * scale;
    m = fmaf(b1, m, ob1 * gradient);
    v = fmaf(b2, v, ob2 * gradient * gradient);
    const float u = m / fmaf(sqrtf(v), correction, eps);
    const uint32_t old = std::bit_cast<uint32_t>(p);
    compute = p = fmaf(step, u, fmaf(decay, p, p));
    if constexpr (sizeof(M) < 4) {
      const uint32_t bits = std::bit_cast<uint32_t>(v), hash = mixed(bits ^ mixed(old + salt));
      v = std::bit_cast<float>((bits + (hash & 0xffffu)) & 0xffff0000u);
    }
  }
};

// The sixteen sums of a block (ops/adamw.h) are chains of additions, one per thread. Other blocks keep the GPU busy.
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

void run(Exec& ex, const AdamW& op) {
  TRAINER_CHECK(op.p.dtype == DType::f32, "adamw p is {}, expected fp32 on a CUDA device", name_of(op.p.dtype));
  if (ex.device.dry()) return;
  const AdamWScalars& s = op.scalars;
  const auto rounded = [](double x) { return static_cast<float>(x); };
  for_compute_type(op.g.dtype, "adamw g", [&](auto type) {
    using G = decltype(type);
    for_compute_type(op.m.dtype, "adamw m", [&](auto moment) {
      using M = decltype(moment);
      const AdamWFormula<M> formula{rounded(s.beta1),
                                    rounded(s.beta2),
                                    rounded(1 - s.beta1),
                                    rounded(1 - s.beta2),
                                    rounded(s.inv_sqrt_correction),
                                    rounded(s.eps),
                                    rounded(s.negative_step),
                                    rounded(s.negative_decay),
                                    rounded(s.gradient_scale),
                                    op.round_gradient,
                                    rounding_salt(s)};
      map_elements<4>(ex, formula, InOut<float>{op.p}, InOut<M>{op.m}, InOut<M>{op.v}, In<G>{op.g},
                      Out<bf16>{op.compute});
    });
  });
}

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
