#include "ops/activation.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"

namespace trainer::ops::cuda {
namespace {

/// Returns v as it would be read back after a store.
template <typename T>
__device__ inline float as_stored(float v) {
  return static_cast<float>(T(v));
}

template <typename T>
struct ActivationFormula {
  bool has_bias;
  Activation act;
  __device__ void operator()(float (&x)[4]) const {
    auto& [in, bias, pre, y] = x;
    pre = has_bias ? in + bias : in;
    y = act == Activation::none ? pre : activated<T>(act, as_stored<T>(pre));
  }
};

template <typename T>
struct BackwardFormula {
  Activation act;
  __device__ void operator()(float (&x)[3]) const {
    auto& [dy, pre, dx] = x;
    dx = dy * slope_of<T>(act, pre);
  }
};

struct AddFormula {
  bool has_bias;
  __device__ void operator()(float (&x)[4]) const {
    auto& [in, other, bias, y] = x;
    y = (has_bias ? in + bias : in) + other;
  }
};

struct SiluGate {
  template <typename T>
  static __device__ float value(float x) {
    return silu<T>(x);
  }
  template <typename T>
  static __device__ WithSlope with_slope(float x) {
    const WithSlope s = sigmoid_with_slope<T>(x);
    return {x * s.value, fmaf(x, s.slope, s.value)};
  }
};
struct GeluGate {
  template <typename T>
  static __device__ float value(float x) {
    return gelu<T>(x);
  }
  template <typename T>
  static __device__ WithSlope with_slope(float x) {
    return gelu_with_slope<T>(x);
  }
};
struct GeluErfGate {
  template <typename T>
  static __device__ float value(float x) {
    return gelu_erf_with_slope<T>(x).value;
  }
  template <typename T>
  static __device__ WithSlope with_slope(float x) {
    return gelu_erf_with_slope<T>(x);
  }
};

template <typename F, typename T>
struct GatedFormula {
  __device__ void operator()(float (&x)[3]) const {
    auto& [gate, up, y] = x;
    y = F::template value<T>(gate) * up;
  }
};

template <typename F, typename T>
struct GatedBackwardFormula {
  __device__ void operator()(float (&x)[5]) const {
    auto& [dy, gate, up, dgate, dup] = x;
    const WithSlope f = F::template with_slope<T>(gate);
    dgate = dy * up * f.slope;
    dup = dy * f.value;
  }
};

/// A gated unit times a weight of the row.
template <typename F, typename T>
struct WeightedGatedBody {
  Rows<const T> gate, up;
  const float* weights;
  Rows<T> y;
  template <int V>
  struct Values {
    float gate[V], up[V], weight;
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(gate.at(at.r, at.c), at.n, v.gate);
    get(up.at(at.r, at.c), at.n, v.up);
    v.weight = weights[at.r];
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) v.gate[i] = F::template value<T>(v.gate[i]) * v.up[i] * v.weight;
    put(y.at(at.r, at.c), at.n, v.gate);
  }
};

/// The operands of GatedBackward with weights; a block computes a row.
template <typename T>
struct WeightedRows {
  Rows<const T> dy, gate, up;
  const float* weights;
  Rows<T> dgate, dup;
  float* dweights;
  int64_t cols;
};
constexpr int kWeightedWarps = 4;
template <typename F, typename T, int V>
__global__ void __launch_bounds__(kWeightedWarps* kWarp) weighted_backward_kernel(WeightedRows<T> op) {
  __shared__ float shared[kWeightedWarps];
  const int64_t r = blockIdx.x;
  const float weight = op.weights[r];
  float sum = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * V; c < op.cols; c += kWeightedWarps * kWarp * V) {
    const int n = static_cast<int>(op.cols - c < V ? op.cols - c : V);
    float t[V], gate[V], up[V];
    get(op.dy.at(r, c), n, t);
    get(op.gate.at(r, c), n, gate);
    get(op.up.at(r, c), n, up);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const WithSlope f = F::template with_slope<T>(gate[i]);
      const float dy = t[i] * weight;
      sum += t[i] * (f.value * up[i]);
      gate[i] = dy * up[i] * f.slope;
      up[i] = dy * f.value;
    }
    put(op.dgate.at(r, c), n, gate);
    put(op.dup.at(r, c), n, up);
  }
  sum = block_sum(sum, shared, kWeightedWarps);
  if (threadIdx.x == 0) op.dweights[r] = sum;
}

struct SigmoidFormula {
  __device__ void operator()(float (&x)[2]) const { x[1] = sigmoid_with_slope<float>(x[0]).value; }
};
struct SigmoidBackwardFormula {
  __device__ void operator()(float (&x)[3]) const { x[2] = x[0] * x[1] * (1.0f - x[1]); }
};

struct SoftCapFormula {
  float cap, slope;
  __device__ void operator()(float (&x)[1]) const {
    const float e = expf(fabsf(x[0]) * slope), size = cap * ((1.0f - e) / (1.0f + e));
    x[0] = x[0] < 0 ? -size : size;
  }
};

template <typename F, typename T>
void weighted_backward(Exec& ex, const GatedBackward& op) {
  const int64_t rows = op.gate.rows();
  if (rows == 0) return;
  const WeightedRows<T> operands{rows_in<T>(op.dy),       rows_in<T>(op.gate),  rows_in<T>(op.up),
                                 op.weights.as<float>(),  rows_of<T>(op.dgate), rows_of<T>(op.dup),
                                 op.dweights.as<float>(), op.gate.cols()};
  const device::cuda::LaunchConfig grid{dim3(static_cast<unsigned>(rows)), dim3(kWeightedWarps * kWarp)};
  constexpr int kWide = wide_of<T>();
  const bool wide = aligned_rows({op.dy, op.gate, op.up, op.dgate, op.dup}, rows, kWide);
  device::cuda::launch(device::cuda::stream_of(ex.device), grid,
                       wide ? weighted_backward_kernel<F, T, kWide> : weighted_backward_kernel<F, T, 1>, operands);
}

/// Calls fn with the function and the compute type of a gated operator.
template <typename Op, typename F>
void for_gated(Exec& ex, const Op& op, F fn) {
  for_compute_type(op.gate.dtype, "gate", [&]<typename T>(T type) {
    if (ex.device.dry()) return;
    if (op.act == Activation::silu) return fn(SiluGate(), type);
    op.act == Activation::gelu_erf ? fn(GeluErfGate(), type) : fn(GeluGate(), type);
  });
}

}  // namespace

void run(Exec& ex, const BiasActivation& op) {
  for_compute_type(op.x.dtype, "activation x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, ActivationFormula<T>{bool(op.bias), op.act}, In<T>{op.x}, In<T>{op.bias, true},
                               Out<T>{op.pre}, Out<T>{op.y});
  });
}

void run(Exec& ex, const ActivationBackward& op) {
  for_compute_type(op.x.dtype, "activation x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, BackwardFormula<T>{op.act}, In<T>{op.dy}, In<T>{op.x}, Out<T>{op.dx});
  });
}

void run(Exec& ex, const Add& op) {
  for_compute_type(op.x.dtype, "add x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, AddFormula{bool(op.bias)}, In<T>{op.x}, In<T>{op.other}, In<T>{op.bias, true},
                               Out<T>{op.y});
  });
}

void add_bf16(Exec& ex, const Tensor& part, const Tensor& sum) {
  map_elements<wide_of<bf16>()>(ex, AddFormula{false}, In<bf16>{part}, In<float>{sum}, In<float>{Tensor(), true},
                                Out<float>{sum});
}

void run(Exec& ex, const SoftCap& op) {
  TRAINER_CHECK(op.x.dtype == DType::f32, "logits are {}: CUDA devices support only fp32", name_of(op.x.dtype));
  if (ex.device.dry()) return;
  map_elements<wide_of<float>()>(ex, SoftCapFormula{static_cast<float>(op.cap), static_cast<float>(-2 / op.cap)},
                                 InOut<float>{op.x});
}

void run(Exec& ex, const GatedForward& op) {
  for_gated(ex, op, [&]<typename F, typename T>(F, T) {
    if (op.weights)
      return map<wide_of<T>()>(
          ex, WeightedGatedBody<F, T>{rows_in<T>(op.gate), rows_in<T>(op.up), op.weights.as<float>(), rows_of<T>(op.y)},
          op.gate.rows(), op.gate.cols(), {op.gate, op.up, op.y}, /*joins=*/false);
    map_elements<wide_of<T>()>(ex, GatedFormula<F, T>{}, In<T>{op.gate}, In<T>{op.up}, Out<T>{op.y});
  });
}

void run(Exec& ex, const GatedBackward& op) {
  for_gated(ex, op, [&]<typename F, typename T>(F, T) {
    if (op.weights) return weighted_backward<F, T>(ex, op);
    map_elements<wide_of<T>()>(ex, GatedBackwardFormula<F, T>{}, In<T>{op.dy}, In<T>{op.gate}, In<T>{op.up},
                               Out<T>{op.dgate}, Out<T>{op.dup});
  });
}

void run(Exec& ex, const ops::Sigmoid& op) {
  TRAINER_CHECK(op.x.dtype == DType::f32, "sigmoid x is {}: CUDA devices support only fp32", name_of(op.x.dtype));
  if (ex.device.dry()) return;
  map_elements<wide_of<float>()>(ex, SigmoidFormula{}, In<float>{op.x}, Out<float>{op.y});
}

void run(Exec& ex, const SigmoidBackward& op) {
  for_compute_type(op.dx.dtype, "sigmoid dx", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<float>()>(ex, SigmoidBackwardFormula{}, In<float>{op.dy}, In<float>{op.y}, Out<T>{op.dx});
  });
}

}  // namespace trainer::ops::cuda
