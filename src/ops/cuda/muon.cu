#include "ops/muon.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

// The arithmetic is canonical, as in adamw.cu: no product is added to anything, except by fmaf.
struct MomentumBody {
  Rows<float> m, g;
  float mu, omu, scale;
  bool nesterov;
  template <int V>
  struct Values {
    float m[V], g[V];
  };
  template <int V>
  __device__ void load(Values<V>& x, const Piece& at) const {
    get(g.at(0, at.c), at.n, x.g);
    get(m.at(0, at.c), at.n, x.m);
  }
  template <int V>
  __device__ void store(Values<V>& x, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float y = omu * (x.g[i] * scale);
      x.m[i] = fmaf(mu, x.m[i], y);
      x.g[i] = nesterov ? fmaf(mu, x.m[i], y) : x.m[i];
    }
    put(m.at(0, at.c), at.n, x.m);
    put(g.at(0, at.c), at.n, x.g);
  }
};

struct ApplyBody {
  Rows<float> p;
  Rows<const float> o;
  Rows<bf16> compute;
  float step, decay;
  template <int V>
  struct Values {
    float p[V], o[V];
  };
  template <int V>
  __device__ void load(Values<V>& x, const Piece& at) const {
    get(p.at(0, at.c), at.n, x.p);
    get(o.at(0, at.c), at.n, x.o);
  }
  template <int V>
  __device__ void store(Values<V>& x, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) x.p[i] = fmaf(step, x.o[i], fmaf(decay, x.p[i], x.p[i]));
    put(p.at(0, at.c), at.n, x.p);
    if (compute.data != nullptr) put(compute.at(0, at.c), at.n, x.p);
  }
};

/// x <- x·factor[0], with the factor rounded to f32.
template <typename T>
struct MultiplyBody {
  Rows<T> x;
  const double* factor;
  template <int V>
  struct Values {
    float x[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(x.at(0, at.c), at.n, v.x);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    const auto rounded = static_cast<float>(*factor);
#pragma unroll
    for (int i = 0; i < V; ++i) v.x[i] *= rounded;
    put(x.at(0, at.c), at.n, v.x);
  }
};

template <typename T>
struct CombineBody {
  Rows<const float> product;
  Rows<const T> x;
  Rows<T> y;
  float alpha, beta;
  template <int V>
  struct Values {
    float product[V], x[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(product.at(0, at.c), at.n, v.product);
    get(x.at(0, at.c), at.n, v.x);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) v.x[i] = fmaf(alpha, v.product[i], beta * v.x[i]);
    put(y.at(0, at.c), at.n, v.x);
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
  const MomentumBody body{rows_of<float>(op.m),     rows_of<float>(op.g),       rounded(op.momentum),
                          rounded(1 - op.momentum), rounded(op.gradient_scale), op.nesterov};
  map<4>(ex, body, op.m.count() == 0 ? 0 : 1, op.m.count(), {op.m, op.g}, true);
}

void run(Exec& ex, const MuonApply& op) {
  require_f32(op.p, "muon p");
  if (ex.device.dry()) return;
  const ApplyBody body{rows_of<float>(op.p), rows_in<float>(op.o), rows_of<bf16>(op.compute), rounded(op.negative_step),
                       rounded(op.negative_decay)};
  map<4>(ex, body, op.p.count() == 0 ? 0 : 1, op.p.count(), {op.p, op.o, op.compute}, true);
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
    map<wide_of<bf16>()>(ex, MultiplyBody<T>{rows_of<T>(op.x), op.blocks.as<double>()}, 1, n, {op.x}, true);
  });
}

void run(Exec& ex, const MuonCombine& op) {
  const int64_t n = op.x.count();
  for_compute_type(op.x.dtype, "muon x", [&]<typename T>(T) {
    if (ex.device.dry() || n == 0) return;
    map<wide_of<bf16>()>(ex,
                         CombineBody<T>{rows_in<float>(op.product), rows_in<T>(op.x), rows_of<T>(op.y),
                                        rounded(op.alpha), rounded(op.beta)},
                         1, n, {op.product, op.x, op.y}, true);
  });
}

}  // namespace trainer::ops::cuda
