#include "ops/finish.h"

#include <type_traits>

#include "ops/cuda/map.cuh"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

/// Returns v as it reads back after a store.
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

}  // namespace trainer::ops::cuda
