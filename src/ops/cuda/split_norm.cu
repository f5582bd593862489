#include "ops/split_norm.h"

#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr int kWarpRows = 4;         // rows per block, one for each warp
constexpr int kColumnThreads = 128;  // threads of a block that iterates over rows

/// Calls body(first column, elements) for the row's pieces that belong to this lane.
template <int V, typename F>
__device__ inline void each_piece(int64_t cols, F&& body) {
  for (int64_t c = int64_t{lane_id()} * V; c < cols; c += kWarp * V)
    body(c, static_cast<int>(cols - c < V ? cols - c : V));
}

template <typename T>
struct Moments {
  Rows<const T> x;
  float *means, *squares;  // means: null for RMS norms
  int64_t rows, cols;
};

template <typename T, int V>
__global__ void __launch_bounds__(kWarp* kWarpRows) moments_kernel(Moments<T> op) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / kWarp;
  if (row >= op.rows) return;
  float mean = 0;
  if (op.means != nullptr) {
    float sum = 0;
    each_piece<V>(op.cols, [&](int64_t c, int n) {
      float x[V];
      get(op.x.at(row, c), n, x);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += x[i];
    });
    mean = warp_sum(sum) / static_cast<float>(op.cols);
  }
  float squares = 0;
  each_piece<V>(op.cols, [&](int64_t c, int n) {
    float x[V];
    get(op.x.at(row, c), n, x);
#pragma unroll
    for (int i = 0; i < V; ++i) squares = i < n ? fmaf(x[i] - mean, x[i] - mean, squares) : squares;
  });
  squares = warp_sum(squares);
  if (lane_id() != 0) return;
  if (op.means != nullptr) op.means[row] = mean;
  op.squares[row] = squares;
}

struct MergeBody {
  const float* all;
  float *means, *rstds;
  int64_t rows, ranks, planes;
  float width, eps;
  template <int V>
  struct Values {};
  template <int V>
  __device__ void load(Values<V>&, const Piece&) const {}
  template <int V>
  __device__ void store(Values<V>&, const Piece& at) const {
    const int64_t r = at.c;
    const auto value = [&](int64_t rank, int64_t plane) { return all[(rank * planes + plane) * rows + r]; };
    float mean = 0, squares = 0;
    if (planes == 2) {
      for (int64_t k = 0; k < ranks; ++k) mean += value(k, 0);
      mean /= static_cast<float>(ranks);
      means[r] = mean;
    }
    for (int64_t k = 0; k < ranks; ++k) {
      const float apart = planes == 2 ? value(k, 0) - mean : 0.0f;
      squares += fmaf(width * apart, apart, value(k, planes - 1));
    }
    rstds[r] = 1.0f / sqrtf(squares / (width * static_cast<float>(ranks)) + eps);
  }
};

template <typename T>
struct Gradient {
  Rows<const T> dy, x, residual;
  const T* gain;
  const float *mean, *rstd;  // mean, sums: null for RMS norms
  float *sums, *products;
  Rows<T> dx;
  float *gain_sums, *bias_sums;  // [blocks, cols]; bias_sums may be null
  int64_t rows, cols, block_rows;
  float hidden, shift;  // shift is added to gains
};

template <typename T, int V>
__global__ void __launch_bounds__(kWarp* kWarpRows) gradient_sums_kernel(Gradient<T> op) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / kWarp;
  if (row >= op.rows) return;
  const float mean = op.mean == nullptr ? 0.0f : op.mean[row], rstd = op.rstd[row];
  float sum = 0, product = 0;
  each_piece<V>(op.cols, [&](int64_t c, int n) {
    float dy[V], x[V], gain[V];
    get(op.dy.at(row, c), n, dy);
    get(op.x.at(row, c), n, x);
    get_gains(op.gain + c, n, op.shift, gain);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum += dy[i] * gain[i];
      product = fmaf(dy[i] * gain[i], (x[i] - mean) * rstd, product);
    }
  });
  sum = warp_sum(sum);
  product = warp_sum(product);
  if (lane_id() != 0) return;
  if (op.sums != nullptr) op.sums[row] = sum;
  op.products[row] = product;
}

/// A thread computes V columns of a block's rows.
template <typename T, int V>
__global__ void __launch_bounds__(kColumnThreads) split_backward_kernel(Gradient<T> op) {
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x) * V;
  if (c >= op.cols) return;
  const int n = static_cast<int>(op.cols - c < V ? op.cols - c : V);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * op.block_rows;
  const int64_t last = first + op.block_rows < op.rows ? first + op.block_rows : op.rows;
  float gain[V], gain_sum[V] = {}, bias_sum[V] = {};
  get_gains(op.gain + c, n, op.shift, gain);
  for (int64_t r = first; r < last; ++r) {
    const float mean = op.mean == nullptr ? 0.0f : op.mean[r], rstd = op.rstd[r];
    const float constant = op.sums == nullptr ? 0.0f : -rstd * (op.sums[r] / op.hidden);
    const float slope = -rstd * (op.products[r] / op.hidden);
    float dy[V], x[V], out[V] = {};
    get(op.dy.at(r, c), n, dy);
    get(op.x.at(r, c), n, x);
    if (op.residual.data != nullptr) get(op.residual.at(r, c), n, out);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float normal = (x[i] - mean) * rstd;
      gain_sum[i] = fmaf(dy[i], normal, gain_sum[i]);
      bias_sum[i] += dy[i];
      out[i] += fmaf(dy[i] * gain[i], rstd, fmaf(normal, slope, constant));
    }
    put(op.dx.at(r, c), n, out);
  }
  const int64_t at = static_cast<int64_t>(blockIdx.y) * op.cols + c;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i >= n) continue;
    op.gain_sums[at + i] = gain_sum[i];
    if (op.bias_sums != nullptr) op.bias_sums[at + i] = bias_sum[i];
  }
}

device::cuda::LaunchConfig warp_rows(int64_t rows) {
  return {dim3(static_cast<unsigned>(divide_up(rows, int64_t{kWarpRows}))), dim3(kWarp * kWarpRows)};
}

float* plane_of(const Tensor& t, int64_t rows, bool center, int plane) {
  return center ? t.as<float>() + plane * rows : plane == 0 ? nullptr : t.as<float>();
}

/// Returns the arguments that SplitNormSums and SplitNormBackward share.
template <typename T, typename Op>
Gradient<T> gradient_of(const Op& op) {
  Gradient<T> args{};
  args.dy = rows_in<T>(op.dy);
  args.x = rows_in<T>(op.x);
  args.gain = op.gain.template as<T>();
  args.mean = op.center ? op.mean.template as<float>() : nullptr;
  args.rstd = op.rstd.template as<float>();
  args.rows = op.x.rows();
  args.cols = op.x.cols();
  args.shift = static_cast<float>(gain_shift(op.gain_offset));
  args.sums = plane_of(op.sums, args.rows, op.center, 0);
  args.products = plane_of(op.sums, args.rows, op.center, 1);
  return args;
}

}  // namespace

void run(Exec& ex, const NormMoments& op) {
  for_compute_type(op.x.dtype, "norm moments x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    constexpr int kPiece = wide_of<T>();
    const int64_t rows = op.x.rows();
    const Moments<T> args{rows_in<T>(op.x), plane_of(op.moments, rows, op.center, 0),
                          plane_of(op.moments, rows, op.center, 1), rows, op.x.cols()};
    if (rows == 0) return;
    const cudaStream_t stream = device::cuda::stream_of(ex.device);
    if (aligned_rows({op.x}, rows, kPiece)) {
      device::cuda::launch(stream, warp_rows(rows), moments_kernel<T, kPiece>, args);
    } else {
      device::cuda::launch(stream, warp_rows(rows), moments_kernel<T, 1>, args);
    }
  });
}

void run(Exec& ex, const NormMerge& op) {
  if (op.rstd.dtype != DType::f32) throw Error(Code::usage, "norm statistics on a CUDA device must be fp32");
  if (ex.device.dry() || op.rstd.count() == 0) return;
  const int64_t rows = op.rstd.count(), planes = norm_planes(op.center);
  map_pieces<1>(
      ex,
      MergeBody{op.all.as<float>(), op.center ? op.mean.as<float>() : nullptr, op.rstd.as<float>(), rows,
                op.all.count() / (planes * rows), planes, static_cast<float>(op.width), static_cast<float>(op.eps)},
      1, rows);
}

void run(Exec& ex, const SplitNormSums& op) {
  for_compute_type(op.x.dtype, "split norm x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    constexpr int kPiece = wide_of<T>();
    const Gradient<T> args = gradient_of<T>(op);
    if (args.rows == 0) return;
    const cudaStream_t stream = device::cuda::stream_of(ex.device);
    if (aligned_rows({op.dy, op.x, op.gain}, args.rows, kPiece)) {
      device::cuda::launch(stream, warp_rows(args.rows), gradient_sums_kernel<T, kPiece>, args);
    } else {
      device::cuda::launch(stream, warp_rows(args.rows), gradient_sums_kernel<T, 1>, args);
    }
  });
}

void run(Exec& ex, const SplitNormBackward& op) {
  for_compute_type(op.x.dtype, "split norm x", [&]<typename T>(T) {
    constexpr int kPiece = wide_of<T>();
    const int64_t rows = op.x.rows(), cols = op.x.cols();
    const int64_t block_rows = reduction_rows(rows);
    const int64_t blocks = divide_up(rows, block_rows);
    const Scratch partials = ex.take("norm.partials", {op.dbias ? 2 * blocks : blocks, cols}, DType::f32);
    Gradient<T> args = gradient_of<T>(op);
    args.residual = rows_in<T>(op.residual);
    args.dx = rows_of<T>(op.dx);
    args.gain_sums = partials.tensor().as<float>();
    args.bias_sums = op.dbias ? args.gain_sums + blocks * cols : nullptr;
    args.block_rows = block_rows;
    args.hidden = static_cast<float>(op.hidden);
    if (!ex.device.dry() && rows > 0 && cols > 0) {
      const cudaStream_t stream = device::cuda::stream_of(ex.device);
      const auto grid = [&](int64_t piece) {
        return device::cuda::LaunchConfig{
            dim3(static_cast<unsigned>(divide_up(cols, piece * kColumnThreads)), static_cast<unsigned>(blocks)),
            dim3(kColumnThreads)};
      };
      if (aligned_rows({op.dy, op.x, op.residual, op.dx, op.gain}, rows, kPiece)) {
        device::cuda::launch(stream, grid(kPiece), split_backward_kernel<T, kPiece>, args);
      } else {
        device::cuda::launch(stream, grid(1), split_backward_kernel<T, 1>, args);
      }
    }
    add_up(ex, partials, {op.dgain, op.accumulate_gain}, {op.dbias, op.accumulate_bias});
  });
}

}  // namespace trainer::ops::cuda
