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
struct BiasActivationBody {
  Rows<const T> x, bias;
  Rows<T> pre, y;
  bool gelu_of;
  template <int V>
  struct Values {
    float x[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(x.at(at.r, at.c), at.n, v.x);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    if (bias.data != nullptr) {
      float b[V];
      get(bias.at(0, at.c), at.n, b);
#pragma unroll
      for (int i = 0; i < V; ++i) v.x[i] += b[i];
    }
    if (pre.data != nullptr) put(pre.at(at.r, at.c), at.n, v.x);
    if (gelu_of) {
#pragma unroll
      for (int i = 0; i < V; ++i) v.x[i] = gelu<T>(as_stored<T>(v.x[i]));
    }
    put(y.at(at.r, at.c), at.n, v.x);
  }
};

template <typename T>
struct GeluBackwardBody {
  Rows<const T> dy, x;
  Rows<T> dx;
  template <int V>
  struct Values {
    float dy[V], x[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(dy.at(at.r, at.c), at.n, v.dy);
    get(x.at(at.r, at.c), at.n, v.x);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) v.dy[i] *= gelu_gradient<T>(v.x[i]);
    put(dx.at(at.r, at.c), at.n, v.dy);
  }
};

template <typename T>
struct AddBody {
  Rows<const T> x, other, bias;
  Rows<T> y;
  template <int V>
  struct Values {
    float x[V], other[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(x.at(at.r, at.c), at.n, v.x);
    get(other.at(at.r, at.c), at.n, v.other);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    if (bias.data != nullptr) {
      float b[V];
      get(bias.at(0, at.c), at.n, b);
#pragma unroll
      for (int i = 0; i < V; ++i) v.x[i] += b[i];
    }
#pragma unroll
    for (int i = 0; i < V; ++i) v.x[i] += v.other[i];
    put(y.at(at.r, at.c), at.n, v.x);
  }
};

template <typename T>
struct SwigluBody {
  Rows<const T> gate, up;
  Rows<T> y;
  template <int V>
  struct Values {
    float gate[V], up[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(gate.at(at.r, at.c), at.n, v.gate);
    get(up.at(at.r, at.c), at.n, v.up);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) v.gate[i] = silu<T>(v.gate[i]) * v.up[i];
    put(y.at(at.r, at.c), at.n, v.gate);
  }
};

template <typename T>
struct SwigluBackwardBody {
  Rows<const T> dy, gate, up;
  Rows<T> dgate, dup;
  template <int V>
  struct Values {
    float dy[V], gate[V], up[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(dy.at(at.r, at.c), at.n, v.dy);
    get(gate.at(at.r, at.c), at.n, v.gate);
    get(up.at(at.r, at.c), at.n, v.up);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float x = v.gate[i];
      const Sigmoid s = sigmoid_with_slope<T>(x);
      v.gate[i] = v.dy[i] * v.up[i] * fmaf(x, s.slope, s.value);
      v.up[i] = v.dy[i] * (x * s.value);
    }
    put(dgate.at(at.r, at.c), at.n, v.gate);
    put(dup.at(at.r, at.c), at.n, v.up);
  }
};

struct SoftCapBody {
  Rows<float> x;
  float cap, slope;
  template <int V>
  struct Values {
    float x[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(x.at(at.r, at.c), at.n, v.x);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float e = expf(fabsf(v.x[i]) * slope), size = cap * ((1.0f - e) / (1.0f + e));
      v.x[i] = v.x[i] < 0 ? -size : size;
    }
    put(x.at(at.r, at.c), at.n, v.x);
  }
};

}  // namespace

void run(Exec& ex, const BiasActivation& op) {
  for_compute_type(op.x.dtype, "activation x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map<wide_of<T>()>(ex,
                      BiasActivationBody<T>{rows_in<T>(op.x),
                                            {op.bias ? op.bias.as<T>() : nullptr, 0},
                                            rows_of<T>(op.pre),
                                            rows_of<T>(op.y),
                                            op.act == Activation::gelu},
                      op.x.rows(), op.x.cols(), {op.x, op.bias, op.pre, op.y}, !op.bias);
  });
}

void run(Exec& ex, const GeluBackward& op) {
  for_compute_type(op.x.dtype, "gelu x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map<wide_of<T>()>(ex, GeluBackwardBody<T>{rows_in<T>(op.dy), rows_in<T>(op.x), rows_of<T>(op.dx)}, op.x.rows(),
                      op.x.cols(), {op.dy, op.x, op.dx}, true);
  });
}

void run(Exec& ex, const Add& op) {
  for_compute_type(op.x.dtype, "add x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map<wide_of<T>()>(
        ex,
        AddBody<T>{rows_in<T>(op.x), rows_in<T>(op.other), {op.bias ? op.bias.as<T>() : nullptr, 0}, rows_of<T>(op.y)},
        op.x.rows(), op.x.cols(), {op.x, op.other, op.bias, op.y}, !op.bias);
  });
}

void run(Exec& ex, const SoftCap& op) {
  TRAINER_CHECK(op.x.dtype == DType::f32, "logits are {}: CUDA devices support only fp32", name_of(op.x.dtype));
  if (ex.device.dry()) return;
  const SoftCapBody body{rows_of<float>(op.x), static_cast<float>(op.cap), static_cast<float>(-2 / op.cap)};
  map<wide_of<float>()>(ex, body, op.x.rows(), op.x.cols(), {op.x}, true);
}

void run(Exec& ex, const SwigluForward& op) {
  for_compute_type(op.gate.dtype, "swiglu gate", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map<wide_of<T>()>(ex, SwigluBody<T>{rows_in<T>(op.gate), rows_in<T>(op.up), rows_of<T>(op.y)}, op.gate.rows(),
                      op.gate.cols(), {op.gate, op.up, op.y}, true);
  });
}

void run(Exec& ex, const SwigluBackward& op) {
  for_compute_type(op.gate.dtype, "swiglu gate", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map<wide_of<T>()>(ex,
                      SwigluBackwardBody<T>{rows_in<T>(op.dy), rows_in<T>(op.gate), rows_in<T>(op.up),
                                            rows_of<T>(op.dgate), rows_of<T>(op.dup)},
                      op.gate.rows(), op.gate.cols(), {op.dy, op.gate, op.up, op.dgate, op.dup}, true);
  });
}

}  // namespace trainer::ops::cuda
