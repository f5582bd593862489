#include "ops/norm.h"

#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"

namespace trainer::ops::cuda {
namespace {

/// Only these functions compute y, and they leave the compiler no choice of contractions, so that forward and apply are
/// bitwise identical.
__device__ inline float normalised(float x, float mean, float rstd, float gain) { return (x - mean) * rstd * gain; }
__device__ inline float normalised(float x, float mean, float rstd, float gain, float bias) {
  return fmaf((x - mean) * rstd, gain, bias);
}

template <typename T, int V>
__device__ inline void normalise(float (&x)[V], float mean, float rstd, const T* gain, const T* bias, float shift,
                                 int n) {
  float factor[V], offset[V];
  get_gains(gain, n, shift, factor);
  if (bias != nullptr) get(bias, n, offset);
#pragma unroll
  for (int i = 0; i < V; ++i)
    x[i] =
        bias == nullptr ? normalised(x[i], mean, rstd, factor[i]) : normalised(x[i], mean, rstd, factor[i], offset[i]);
}

template <typename T>
struct ForwardRows {
  Rows<const T> x;
  const T *gain, *bias;
  Rows<T> y;
  float *mean, *rstd;
  int64_t rows, cols, groups;  // a row has `groups` groups of `cols` columns; blockIdx.y is the group
  float eps;
  bool center;
  float shift;  // added to gains
};

constexpr int kFew = 4, kMany = 8;  // maximum pieces of a row that a thread keeps; it reads other pieces again
constexpr int kWarpRows = 4;        // rows per block, one for each warp
constexpr int kRowThreads = 256, kMostRowThreads = 512;  // threads of a block that computes one row

/// One warp (kOneWarp) or one block computes a row. The number of columns is a multiple of V.
template <typename T, int V, int kCached, bool kOneWarp>
__global__ void __launch_bounds__(kOneWarp ? kWarp* kWarpRows : kMostRowThreads, 1)
    norm_forward_kernel(ForwardRows<T> op) {
  __shared__ float shared[kMostWarps];
  const int team = kOneWarp ? kWarp : static_cast<int>(blockDim.x), warps = team / kWarp;
  const int thread = static_cast<int>(threadIdx.x) % team;
  const int64_t row = kOneWarp ? static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / kWarp : blockIdx.x;
  if (row >= op.rows) return;
  const int cols = static_cast<int>(op.cols);
  const int64_t start = blockIdx.y * op.cols, at = row * op.groups + blockIdx.y;
  const T* in = op.x.at(row, start);
  const auto column = [&](int k) { return (thread + k * team) * V; };
  float kept[kCached][V];
#pragma unroll
  for (int k = 0; k < kCached; ++k)
    if (column(k) < cols) get(in + column(k), V, kept[k]);
  const auto each = [&](auto&& body) {
#pragma unroll
    for (int k = 0; k < kCached; ++k)
      if (column(k) < cols) body(kept[k], column(k));
    if constexpr (!kOneWarp) {
      for (int c = column(kCached); c < cols; c += team * V) {
        float more[V];
        get(in + c, V, more);
        body(more, c);
      }
    }
  };

  const float count = static_cast<float>(op.cols);
  float mean = 0;
  if (op.center) {
    float sum = 0;
    each([&](const float(&x)[V], int) {
#pragma unroll
      for (int i = 0; i < V; ++i) sum += x[i];
    });
    mean = block_sum(sum, shared, warps) / count;
  }
  float squares = 0;
  each([&](const float(&x)[V], int) {
#pragma unroll
    for (int i = 0; i < V; ++i) squares = fmaf(x[i] - mean, x[i] - mean, squares);
  });
  const float rstd = 1.0f / sqrtf(block_sum(squares, shared, warps) / count + op.eps);
  if (thread == 0) {
    if (op.mean != nullptr) op.mean[at] = mean;
    if (op.rstd != nullptr) op.rstd[at] = rstd;
  }
  each([&](float(&x)[V], int c) {
    normalise(x, mean, rstd, op.gain + c, op.bias == nullptr ? nullptr : op.bias + c, op.shift, V);
    put(op.y.at(row, start + c), V, x);
  });
}

template <typename T, int V>
void launch_forward(Exec& ex, const ForwardRows<T>& op) {
  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  TRAINER_CHECK(op.cols < INT32_MAX / 2, "norm over {} columns: CUDA kernels support fewer than {}", op.cols,
                INT32_MAX / 2);
  if (op.rows == 0 || op.cols == 0) return;
  const int64_t pieces = divide_up(op.cols, int64_t{V});
  const auto groups = static_cast<unsigned>(op.groups);
  if (pieces <= kWarp * kMany) {  // no barrier, and all loads of a row in flight at once
    const device::cuda::LaunchConfig grid{dim3(static_cast<unsigned>(divide_up(op.rows, int64_t{kWarpRows})), groups),
                                          dim3(kWarp * kWarpRows)};
    if (pieces <= kWarp * kFew) {
      device::cuda::launch(stream, grid, norm_forward_kernel<T, V, kFew, true>, op);
    } else {
      device::cuda::launch(stream, grid, norm_forward_kernel<T, V, kMany, true>, op);
    }
  } else {
    const unsigned threads = pieces <= kRowThreads * kFew ? kRowThreads : kMostRowThreads;
    device::cuda::launch(stream, {dim3(static_cast<unsigned>(op.rows), groups), dim3(threads)},
                         norm_forward_kernel<T, V, kFew, false>, op);
  }
}

template <typename T>
struct ApplyBody {
  Rows<const T> x;
  const T *gain, *bias;
  const float *mean, *rstd;
  Rows<T> y;
  int64_t groups, cols;  // at.r counts groups, over all rows
  float shift;           // added to gains
  __device__ Piece place(const Piece& at) const {
    if (groups == 1) return at;
    const int64_t row = quotient(at.r, groups);
    return {row, (at.r - row * groups) * cols + at.c, at.n};
  }
  template <int V>
  struct Values {
    float x[V], mean, rstd;
  };
  template <int V>
  __device__ void load(Values<V>& v, const Piece& at) const {
    const Piece from = place(at);
    get(x.at(from.r, from.c), at.n, v.x);
    v.mean = mean == nullptr ? 0.0f : mean[at.r];
    v.rstd = rstd[at.r];
  }
  template <int V>
  __device__ void store(Values<V>& v, const Piece& at) const {
    normalise(v.x, v.mean, v.rstd, gain + at.c, bias == nullptr ? nullptr : bias + at.c, shift, at.n);
    const Piece to = place(at);
    put(y.at(to.r, to.c), at.n, v.x);
  }
};

}  // namespace

void run(Exec& ex, const NormForward& op) {
  for_compute_type(op.x.dtype, "norm x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    constexpr int kPiece = wide_of<T>();
    const ForwardRows<T> rows{rows_in<T>(op.x),
                              op.gain.as<T>(),
                              op.bias ? op.bias.as<T>() : nullptr,
                              rows_of<T>(op.y),
                              op.mean ? op.mean.as<float>() : nullptr,
                              op.rstd ? op.rstd.as<float>() : nullptr,
                              op.x.rows(),
                              op.x.cols() / op.groups,
                              op.groups,
                              static_cast<float>(op.eps),
                              op.center,
                              static_cast<float>(gain_shift(op.gain_offset))};
    whole_pieces({op.x, op.y, op.gain, op.bias}, rows.rows, rows.cols, kPiece) ? launch_forward<T, kPiece>(ex, rows)
                                                                               : launch_forward<T, 1>(ex, rows);
  });
}

void run(Exec& ex, const NormApply& op) {
  for_compute_type(op.x.dtype, "norm x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    const int64_t cols = op.x.cols() / op.groups;
    const ApplyBody<T> body{rows_in<T>(op.x),
                            op.gain.as<T>(),
                            op.bias ? op.bias.as<T>() : nullptr,
                            op.center ? op.mean.as<float>() : nullptr,
                            op.rstd.as<float>(),
                            rows_of<T>(op.y),
                            op.groups,
                            cols,
                            static_cast<float>(gain_shift(op.gain_offset))};
    // If groups consist of whole pieces, they begin at multiples of a piece.
    if (op.groups == 1 || cols % wide_of<T>() == 0) {
      map<wide_of<T>()>(ex, body, op.x.rows() * op.groups, cols, {op.x, op.y, op.gain, op.bias}, false);
    } else {
      map_pieces<1>(ex, body, op.x.rows() * op.groups, cols);
    }
  });
}

}  // namespace trainer::ops::cuda
