#pragma once
// Elementwise kernels: a body loads a piece of V elements of a row, computes and stores it. A thread loads all its
// pieces before it stores the first one, which keeps enough accesses in flight. Outputs may alias inputs, element by
// element. Most operators are a formula of one element, for map_elements.
#include <algorithm>
#include <tuple>
#include <utility>

#include "device/cuda/runtime.h"
#include "ops/cuda/lanes.cuh"
#include "tensor/exec.h"

namespace trainer::ops::cuda {

/// A piece is columns c … c + n − 1 of row r, n <= V.
struct Piece {
  int64_t r, c;
  int n;
};

inline constexpr int kMapThreads = 256, kMapPieces = 2;

template <int V>
__device__ inline Piece piece_at(int64_t item, int64_t per_row, int64_t cols) {
  const int64_t r = item < per_row ? 0 : quotient(item, per_row);
  const int64_t c = (item - r * per_row) * V;
  return {r, c, static_cast<int>(cols - c < V ? cols - c : V)};
}

template <int V, typename Body>
__global__ void __launch_bounds__(kMapThreads) map_kernel(Body body, int64_t items, int64_t per_row, int64_t cols) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kMapThreads * kMapPieces) + threadIdx.x;
  Piece at[kMapPieces];
  typename Body::template Values<V> values[kMapPieces];
#pragma unroll
  for (int i = 0; i < kMapPieces; ++i) {
    const int64_t item = first + i * kMapThreads;
    at[i].n = 0;
    if (item >= items) continue;
    at[i] = piece_at<V>(item, per_row, cols);
    body.load(values[i], at[i]);
  }
#pragma unroll
  for (int i = 0; i < kMapPieces; ++i)
    if (at[i].n > 0) body.store(values[i], at[i]);
}

template <int V, typename Body>
void map_pieces(Exec& ex, const Body& body, int64_t rows, int64_t cols) {
  const int64_t per_row = divide_up(cols, int64_t{V}), items = rows * per_row;
  if (items == 0) return;
  const auto blocks = static_cast<unsigned>(divide_up(items, int64_t{kMapThreads * kMapPieces}));
  device::cuda::launch(device::cuda::stream_of(ex.device), {dim3(blocks), dim3(kMapThreads)}, map_kernel<V, Body>, body,
                       items, per_row, cols);
}

/// Runs `body` over rows × cols, in pieces of V elements if all operands (except empty ones) are aligned for that, and
/// element by element if not. `joins`: packed operands may be treated as one long row, so `body` must not depend on
/// rows.
template <int V, typename Body>
void map(Exec& ex, const Body& body, int64_t rows, int64_t cols, std::initializer_list<Tensor> operands, bool joins) {
  if (joins && std::all_of(operands.begin(), operands.end(), [](const Tensor& t) { return !t || t.packed(); })) {
    cols *= rows;
    rows = std::min<int64_t>(rows, 1);
  }
  aligned_rows(operands, rows, V) ? map_pieces<V>(ex, body, rows, cols) : map_pieces<1>(ex, body, rows, cols);
}

/// An operand of map_elements. An empty one is not written and reads as 0.
template <typename T, bool kRead, bool kWritten>
struct Operand {
  const Tensor& tensor;
  bool every_row = false;  // a vector [cols], the same for all rows
};
template <typename T>
using In = Operand<T, true, false>;
template <typename T>
using Out = Operand<T, false, true>;
template <typename T>
using InOut = Operand<T, true, true>;

/// Operand `kNumber` in a kernel.
template <size_t kNumber, typename T, bool kRead, bool kWritten>
struct Accesses {
  Rows<T> rows;
  template <typename Values>
  __device__ void load_into(Values& v, const Piece& at) const {
    auto& x = v.x[kNumber];
    for (float& element : x) element = 0;
    if constexpr (kRead)
      if (rows.data != nullptr) get(static_cast<const T*>(rows.at(at.r, at.c)), at.n, x);
  }
  template <typename Values>
  __device__ void store_from(const Values& v, const Piece& at) const {
    if constexpr (kWritten)
      if (rows.data != nullptr) put(rows.at(at.r, at.c), at.n, v.x[kNumber]);
  }
};

template <typename Formula, typename... A>
struct ElementsBody : A... {
  Formula formula;
  template <int V>
  struct Values {
    float x[sizeof...(A)][V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    (A::load_into(v, at), ...);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float element[sizeof...(A)];
#pragma unroll
      for (size_t k = 0; k < sizeof...(A); ++k) element[k] = v.x[k][i];
      formula(element);
#pragma unroll
      for (size_t k = 0; k < sizeof...(A); ++k) v.x[k][i] = element[k];
    }
    (A::store_from(v, at), ...);
  }
};

/// Applies formula(float (&x)[N]), which reads and writes one element of each of the N operands, to all elements of the
/// first operand's shape, in pieces of V.
template <int V, typename Formula, typename... T, bool... kRead, bool... kWritten>
void map_elements(Exec& ex, const Formula& formula, const Operand<T, kRead, kWritten>&... operands) {
  const Tensor& shape = std::get<0>(std::tie(operands...)).tensor;
  const auto body_of = [&]<size_t... kNumber>(std::index_sequence<kNumber...>) {
    return ElementsBody<Formula, Accesses<kNumber, T, kRead, kWritten>...>{
        {{operands.tensor ? operands.tensor.template as<T>() : nullptr,
          operands.tensor && !operands.every_row ? operands.tensor.ld() : 0}}...,
        formula};
  };
  map<V>(ex, body_of(std::index_sequence_for<T...>{}), shape.rows(), shape.cols(), {operands.tensor...},
         (... && !(operands.every_row && operands.tensor)));
}

/// Calls fn(T{}) for the compute type of a CUDA operator.
template <typename F>
void for_compute_type(DType dtype, const char* name, F&& fn) {
  switch (dtype) {
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(bf16{});
    default:
      throw Error(Code::usage, format("{} is {}: CUDA devices support only fp32 and bf16", name, name_of(dtype)));
  }
}

}  // namespace trainer::ops::cuda
