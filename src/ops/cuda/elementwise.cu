#include "ops/elementwise.h"

#include <type_traits>

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

/// draws[i] = draw of element index + i, for V = 1 or 4 elements. `kWhole`: pieces of 4 elements are blocks of draws.
template <bool kWhole, int V>
__device__ inline void draws_from(PhiloxKey key, uint32_t step, uint64_t index, uint32_t (&draws)[V]) {
  static_assert(V == 1 || V == 4);
  const Philox4 here = philox_block(key, index / 4, step);
  if constexpr (kWhole && V == 4) {
#pragma unroll
    for (size_t i = 0; i < 4; ++i) draws[i] = here[i];
    return;
  }
  const auto skip = static_cast<unsigned>(index % 4);
  uint32_t all[8] = {here[0], here[1], here[2], here[3]};
  if (V > 1 && skip != 0) {
    const Philox4 next = philox_block(key, index / 4 + 1, step);
#pragma unroll
    for (size_t i = 0; i < 4; ++i) all[4 + i] = next[i];
  }
  // Shifts draws down by `skip`, without indexing registers.
#pragma unroll
  for (unsigned bit = 1; bit <= 2; ++bit)
#pragma unroll
    for (unsigned i = 0; i + bit < 8; ++i) all[i] = (skip & bit) != 0 ? all[i + bit] : all[i];
#pragma unroll
  for (int i = 0; i < V; ++i) draws[i] = all[i];
}

template <typename T, bool kWhole>
struct DropoutBody {
  Rows<const T> x, residual, bias;
  Rows<T> y;
  PhiloxKey key;
  uint32_t step, threshold;
  uint64_t first_index, width;
  const int32_t* order;
  float scale;
  template <int V>
  struct Values {
    float x[V], residual[V];
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    get(x.at(at.r, at.c), at.n, v.x);
    if (residual.data != nullptr) get(residual.at(at.r, at.c), at.n, v.residual);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    if (bias.data != nullptr) {
      float b[V];
      get(bias.at(0, at.c), at.n, b);
#pragma unroll
      for (int i = 0; i < V; ++i) v.x[i] += b[i];
    }
    if (threshold != 0) {
      uint32_t draws[V];
      const auto row = static_cast<uint64_t>(order == nullptr ? at.r : order[at.r]);
      draws_from<kWhole>(key, step, first_index + row * width + static_cast<uint64_t>(at.c), draws);
#pragma unroll
      for (int i = 0; i < V; ++i) v.x[i] = draws[i] >= threshold ? v.x[i] * scale : 0.0f;
    }
    if (residual.data != nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) v.x[i] += v.residual[i];
    }
    put(y.at(at.r, at.c), at.n, v.x);
  }
};

struct ScaleFormula {
  float factor;
  __device__ void operator()(float (&x)[1]) const { x[0] *= factor; }
};

struct CastFormula {
  __device__ void operator()(float (&x)[2]) const { x[1] = x[0]; }
};

/// Units of memory: 1, 2, 4, 8 bytes, or Words<4>.
template <typename Unit>
struct CopyBody {
  Rows<const Unit> x;
  Rows<Unit> y;
  template <int V>
  struct Values {
    Unit x;
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    v.x = *x.at(at.r, at.c);
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    *y.at(at.r, at.c) = v.x;
  }
};

inline constexpr int kTransposeTile = 32, kTransposeRows = 8;  // a thread copies from every kTransposeRows-th row

/// A tile is transposed in shared memory, so that rows are read and written whole. Its row stride there is an odd
/// number of banks, so that a column is spread over all banks.
template <typename Unit>
__global__ void __launch_bounds__(kTransposeTile* kTransposeRows)
    transpose_kernel(Rows<const Unit> x, Rows<Unit> y, int64_t rows, int64_t cols, int64_t across) {
  __shared__ Unit tile[kTransposeTile][kTransposeTile + (sizeof(Unit) < 4 ? 4 / sizeof(Unit) : 1)];
  const int lane = static_cast<int>(threadIdx.x) % kTransposeTile,
            first = static_cast<int>(threadIdx.x) / kTransposeTile;
  const int64_t down = quotient(blockIdx.x, across);
  const int64_t r0 = down * kTransposeTile, c0 = (blockIdx.x - down * across) * kTransposeTile;
  for (int i = first; i < kTransposeTile; i += kTransposeRows)
    if (r0 + i < rows && c0 + lane < cols) tile[i][lane] = *x.at(r0 + i, c0 + lane);
  __syncthreads();
  for (int i = first; i < kTransposeTile; i += kTransposeRows)
    if (c0 + i < cols && r0 + lane < rows) *y.at(c0 + i, r0 + lane) = tile[lane][i];
}

template <typename Unit>
void transpose_units(Exec& ex, const Transpose& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols(), across = divide_up(cols, int64_t{kTransposeTile});
  const int64_t tiles = divide_up(rows, int64_t{kTransposeTile}) * across;
  if (tiles == 0) return;
  device::cuda::launch(device::cuda::stream_of(ex.device),
                       {dim3(static_cast<unsigned>(tiles)), dim3(kTransposeTile * kTransposeRows)},
                       transpose_kernel<Unit>, Rows<const Unit>{reinterpret_cast<const Unit*>(op.x.data), op.x.ld()},
                       Rows<Unit>{reinterpret_cast<Unit*>(op.y.data), op.y.ld()}, rows, cols, across);
}

template <typename Unit>
void copy_units(Exec& ex, const Copy& op, int64_t rows, int64_t row_bytes) {
  constexpr int64_t kSize = sizeof(Unit);
  const auto unit_ld = [](const Tensor& t) { return t.ld() * size_of(t.dtype) / kSize; };
  map_pieces<1>(ex,
                CopyBody<Unit>{{reinterpret_cast<const Unit*>(op.x.data), unit_ld(op.x)},
                               {reinterpret_cast<Unit*>(op.y.data), unit_ld(op.y)}},
                rows, row_bytes / kSize);
}

}  // namespace

void run(Exec& ex, const DropoutAdd& op) {
  for_compute_type(op.x.dtype, "dropout x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    const DropoutSite& s = op.site;
    const uint64_t first = static_cast<uint64_t>(s.first_row * s.width + s.first_col);
    const auto drop = [&]<bool kWhole>(std::bool_constant<kWhole>) {
      const DropoutBody<T, kWhole> body{rows_in<T>(op.x),
                                        rows_in<T>(op.residual),
                                        rows_in<T>(op.bias),
                                        rows_of<T>(op.y),
                                        s.key,
                                        s.step,
                                        dropout_threshold(s.p),
                                        first,
                                        static_cast<uint64_t>(s.width),
                                        s.order ? s.order.as<int32_t>() : nullptr,
                                        static_cast<float>(1.0 / (1.0 - s.p))};
      map<4>(ex, body, op.x.rows(), op.x.cols(), {op.x, op.residual, op.y, op.bias}, false);
    };
    first % 4 == 0 && s.width % 4 == 0 ? drop(std::true_type{}) : drop(std::false_type{});
  });
}

void run(Exec& ex, const Scale& op) {
  for_compute_type(op.x.dtype, "scale x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    map_elements<wide_of<T>()>(ex, ScaleFormula{static_cast<float>(op.factor)}, InOut<T>{op.x});
  });
}

void run(Exec& ex, const Cast& op) {
  for_compute_type(op.x.dtype, "cast x", [&]<typename From>(From) {
    for_compute_type(op.y.dtype, "cast y", [&]<typename To>(To) {
      if (ex.device.dry()) return;
      map_elements<wide_of<To>()>(ex, CastFormula{}, In<From>{op.x.range(0, op.x.count())},
                                  Out<To>{op.y.range(0, op.y.count())});
    });
  });
}

void run(Exec& ex, const Copy& op) {
  if (ex.device.dry()) return;
  int64_t rows = op.x.rows(), row_bytes = op.x.cols() * size_of(op.x.dtype);
  auto common = reinterpret_cast<uintptr_t>(op.x.data) | reinterpret_cast<uintptr_t>(op.y.data);
  if (op.x.packed() && op.y.packed()) {
    row_bytes *= rows;
    rows = std::min<int64_t>(rows, 1);
  } else {
    common |= static_cast<uintptr_t>((op.x.ld() | op.y.ld()) * size_of(op.x.dtype));
  }
  common |= static_cast<uintptr_t>(row_bytes);
  if (common % 16 == 0) {
    copy_units<Words<4>>(ex, op, rows, row_bytes);
  } else if (common % 8 == 0) {
    copy_units<Words<2>>(ex, op, rows, row_bytes);
  } else if (common % 4 == 0) {
    copy_units<Words<1>>(ex, op, rows, row_bytes);
  } else if (common % 2 == 0) {
    copy_units<uint16_t>(ex, op, rows, row_bytes);
  } else {
    copy_units<uint8_t>(ex, op, rows, row_bytes);
  }
}

void run(Exec& ex, const Transpose& op) {
  op.x.dtype == DType::bf16 ? transpose_units<uint16_t>(ex, op) : transpose_units<uint32_t>(ex, op);
}

}  // namespace trainer::ops::cuda
