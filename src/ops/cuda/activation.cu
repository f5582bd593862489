#include "ops/activation.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

/// Returns v as it would be read back after a store.
template <typename T>
__device__ inline float as_stored(float v) {
  return static_cast<float>(T(v));
}

template <typename T>
struct ActivationFormula {
  bool has_bias, gelu_of;
  __device__ void operator()(float (&x)[4]) const {
    auto& [in, bias, pre, y] = x;
    pre = has_bias ? in + bias : in;
    y = gelu_of ? gelu<T>(as_stored<T>(pre)) : pre;
  }
};

template <typename T>
struct GeluBackwardFormula {
  __device__ void operator()(float (&x)[3]) const {
    auto& [dy, pre, dx] = x;
    dx = dy * gelu_gradient<T>(pre);
  }
};

struct AddFormula {
  bool has_bias;
  __device__ void operator()(float (&x)[4]) const {
    auto& [in, other, bias, y] = x;
    y = (has_bias ? in + bias : in) + other;
  }
};

template <typename T>
struct SwigluFormula {
  __device__ void operator()(float (&x)[3]) const {
    auto& [gate, up, y] = x;
    y = silu<T>(gate) * up;
  }
};

template <typename T>
struct SwigluBackwardFormula {
  __device__ void operator()(float (&x)[5]) const {
    auto& [dy, gate, up, dgate, dup] = x;
    const Sigmoid s = sigmoid_with_slope<T>(gate);
    dgate = dy * up * fmaf(gate, s.slope, s.value);
    dup = dy * (gate * s.value);
  }
};

struct SoftCapFormula {
  float cap, slope;
  __device__ void operator()(float (&x)[1]) const {
    const float e = expf(fabsf(x[0]) * slope), size = cap * ((1.0f - e) / (1.0f + e));
    x[0] = x[0] < 0 ? -size : size;
  }
};

}  // namespace

void run(Exec& ex, const BiasActivation& op) {
  for_compute_type(op.x.dtype, "activation x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, ActivationFormula<T>{bool(op.bias), op.act == Activation::gelu}, In<T>{op.x},
                               In<T>{op.bias, true}, Out<T>{op.pre}, Out<T>{op.y});
  });
}

void run(Exec& ex, const GeluBackward& op) {
  for_compute_type(op.x.dtype, "gelu x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, GeluBackwardFormula<T>{}, In<T>{op.dy}, In<T>{op.x}, Out<T>{op.dx});
  });
}

void run(Exec& ex, const Add& op) {
  for_compute_type(op.x.dtype, "add x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, AddFormula{bool(op.bias)}, In<T>{op.x}, In<T>{op.other}, In<T>{op.bias, true},
                               Out<T>{op.y});
  });
}

void run(Exec& ex, const SoftCap& op) {
  TRAINER_CHECK(op.x.dtype == DType::f32, "logits are {}: CUDA devices support only fp32", name_of(op.x.dtype));
  if (ex.device.dry()) return;
  map_elements<wide_of<float>()>(ex, SoftCapFormula{static_cast<float>(op.cap), static_cast<float>(-2 / op.cap)},
                                 InOut<float>{op.x});
}

void run(Exec& ex, const SwigluForward& op) {
  for_compute_type(op.gate.dtype, "swiglu gate", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, SwigluFormula<T>{}, In<T>{op.gate}, In<T>{op.up}, Out<T>{op.y});
  });
}

void run(Exec& ex, const SwigluBackward& op) {
  for_compute_type(op.gate.dtype, "swiglu gate", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, SwigluBackwardFormula<T>{}, In<T>{op.dy}, In<T>{op.gate}, In<T>{op.up},
                               Out<T>{op.dgate}, Out<T>{op.dup});
  });
}

}  // namespace trainer::ops::cuda
