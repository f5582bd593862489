#include "ops/muon.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

// The arithmetic is canonical, as in update.cu: no product is added to anything, except by fmaf.
struct MomentumFormula {
  float mu, omu, scale;
  bool nesterov;
  __device__ void operator()(float (&x)[2]) const {
    auto& [m, g] = x;
    const float y = omu * (g * scale);
    m = fmaf(mu, m, y);
    g = nesterov ? fmaf(mu, m, y) : m;
  }
};

/// x <- x·factor[0], with the factor rounded to f32.
struct MultiplyFormula {
  const double* factor;
  __device__ void operator()(float (&x)[1]) const { x[0] *= static_cast<float>(*factor); }
};

struct CombineFormula {
  float alpha, beta;
  __device__ void operator()(float (&x)[3]) const {
    auto& [product, in, y] = x;
    y = fmaf(alpha, product, beta * in);
  }
};

/// blocks[0] <- 1/max(room·root of the sum, floor). Chunks are loaded together, and added in order by one thread.
__global__ void __launch_bounds__(32) factor_kernel(double* blocks, int64_t n, double room, double floor) {
  __shared__ double chunk[32];
  double sum = 0;
  for (int64_t first = 0; first < n; first += 32) {
    const int64_t at = first + threadIdx.x;
    chunk[threadIdx.x] = at < n ? blocks[at] : 0;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 0; i < 32; ++i) sum += chunk[i];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const double norm = sqrt(sum) * room;
    blocks[0] = 1 / (norm < floor ? floor : norm);
  }
}

constexpr int kStripThreads = 128;

template <typename Flat, typename Packed>
__global__ void __launch_bounds__(kStripThreads) gather_kernel(const Flat* flat, const Strip* strips, Packed* packed) {
  const Strip s = strips[blockIdx.x];
  for (int64_t i = threadIdx.x; i < s.length; i += kStripThreads)
    packed[s.place + i] = Packed(static_cast<float>(flat[s.at + i * s.stride]));
}
template <typename Packed, typename Flat>
__global__ void __launch_bounds__(kStripThreads)
    scatter_kernel(const Packed* packed, const Strip* strips, Flat* flat, float scale) {
  const Strip s = strips[blockIdx.x];
  for (int64_t i = threadIdx.x; i < s.length; i += kStripThreads)
    flat[s.at + i * s.stride] = Flat(static_cast<float>(packed[s.place + i]) * scale);
}
const Strip* strips_of(const Tensor& strips) { return reinterpret_cast<const Strip*>(strips.as<int64_t>()); }

float rounded(double x) { return static_cast<float>(x); }
void require_f32(const Tensor& t, const char* name) {
  TRAINER_CHECK(t.dtype == DType::f32, "{} is {}, expected fp32 on a CUDA device", name, name_of(t.dtype));
}

}  // namespace

void run(Exec& ex, const MuonMomentum& op) {
  require_f32(op.m, "muon m");
  if (ex.device.dry()) return;
  map_elements<4>(
      ex, MomentumFormula{rounded(op.momentum), rounded(1 - op.momentum), rounded(op.gradient_scale), op.nesterov},
      InOut<float>{op.m}, InOut<float>{op.g});
}

void run(Exec& ex, const GatherStrips& op) {
  for_compute_type(op.flat.dtype, "flat", [&]<typename Flat>(Flat) {
    for_compute_type(op.packed.dtype, "packed", [&]<typename Packed>(Packed) {
      if (ex.device.dry() || op.strips.count() == 0) return;
      device::cuda::launch(device::cuda::stream_of(ex.device),
                           {dim3(static_cast<unsigned>(op.strips.count() / 4)), dim3(kStripThreads)},
                           gather_kernel<Flat, Packed>, static_cast<const Flat*>(op.flat.as<Flat>()),
                           strips_of(op.strips), op.packed.as<Packed>());
    });
  });
}

void run(Exec& ex, const ScatterStrips& op) {
  for_compute_type(op.packed.dtype, "packed", [&]<typename Packed>(Packed) {
    for_compute_type(op.flat.dtype, "flat", [&]<typename Flat>(Flat) {
      if (ex.device.dry() || op.strips.count() == 0) return;
      device::cuda::launch(device::cuda::stream_of(ex.device),
                           {dim3(static_cast<unsigned>(op.strips.count() / 4)), dim3(kStripThreads)},
                           scatter_kernel<Packed, Flat>, static_cast<const Packed*>(op.packed.as<Packed>()),
                           strips_of(op.strips), op.flat.as<Flat>(), rounded(op.scale));
    });
  });
}

void run(Exec& ex, const MuonNormalize& op) {
  const int64_t n = op.x.count();
  for_compute_type(op.x.dtype, "muon x", [&]<typename T>(T) {
    if (ex.device.dry() || n == 0) return;
    const SquaredNorm norm{op.x.reshape({n}), op.blocks};
    cuda::run(ex, SquaredNorms{{&norm, 1}});
    device::cuda::launch(device::cuda::stream_of(ex.device), {dim3(1), dim3(32)}, factor_kernel, op.blocks.as<double>(),
                         op.blocks.count(), op.room, op.floor);
    map_elements<wide_of<bf16>()>(ex, MultiplyFormula{op.blocks.as<double>()}, InOut<T>{op.x});
  });
}

void run(Exec& ex, const MuonCombine& op) {
  const int64_t n = op.x.count();
  for_compute_type(op.x.dtype, "muon x", [&]<typename T>(T) {
    if (ex.device.dry() || n == 0) return;
    map_elements<wide_of<bf16>()>(ex, CombineFormula{rounded(op.alpha), rounded(op.beta)}, In<float>{op.product},
                                  In<T>{op.x}, Out<T>{op.y});
  });
}

}  // namespace trainer::ops::cuda
