#include "ops/activation.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/math.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

template <typename T>
struct GeluBody : FromOne<T, T> {
  template <int V>
  __device__ void store(typename FromOne<T, T>::template Values<V>& v, const Piece& at) const {
#pragma unroll
    for (float& value : v.x) value = gelu<T>(value);
    put(this->y.at(at.r, at.c), at.n, v.x);
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

}  // namespace

void run(Exec& ex, const GeluForward& op) {
  for_compute_type(op.x.dtype, "gelu x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map<wide_of<T>()>(ex, GeluBody<T>{{rows_in<T>(op.x), rows_of<T>(op.y)}}, op.x.rows(), op.x.cols(), {op.x, op.y},
                      true);
  });
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
