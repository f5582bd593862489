#include <type_traits>

#include "ops/cuda/ops.h"
#include "ops/cuda/reduce.cuh"
#include "ops/norm.h"

namespace trainer::ops::cuda {
namespace {

template <typename T>
struct BackwardRows {
  Rows<const T> dy, x, residual;
  const T* gain;
  const float *mean, *rstd;
  Rows<T> dx;
  float *gain_sums, *bias_sums;            // [groups · blocks, cols]; bias_sums may be null
  int64_t rows, cols, block_rows, groups;  // a row has `groups` groups of `cols` columns; blockIdx.y is the group
  bool center;
};

constexpr int kBackwardThreads = 512;
/// Resident threads per multiprocessor: 3 blocks with rows of 1600 columns, 8 with rows of 768. Only bf16 leaves enough
/// registers for that if rows are prefetched.
template <typename T>
constexpr int kResidentThreads = std::is_same_v<T, bf16> ? 768 : kBackwardThreads;

/// With n = (x − mean)·rstd and g = dy·gain:  dx = rstd·(g − Σg/H − n·Σ(g·n)/H), Σg only when centred.
struct RowTerms {
  float rstd, constant, slope;
  __device__ RowTerms(float r, const float (&sums)[2], float count, bool center)
      : rstd(r), constant(center ? -r * (sums[0] / count) : 0.0f), slope(-r * (sums[1] / count)) {}
  __device__ float gradient(float g, float n) const { return fmaf(g, rstd, fmaf(n, slope, constant)); }
};

/// Returns the index of this block's partial sums.
__device__ inline int64_t block_index() { return static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x; }

/// True if rows are prefetched, which takes registers.
template <int V, int K>
constexpr bool kAhead = (K * V) <= 8;

/// A block iterates over its rows; each thread keeps the sums of its K·V columns. The number of columns is a multiple
/// of V. The loads of the next row are in flight while a row is reduced and stored, if registers allow it. Prefetched
/// values stay in their storage type, so bf16 takes half the registers.
template <typename T, int V, int K>
__global__ void __launch_bounds__(V > 1 && kAhead<V, K> ? kResidentThreads<T> : kBackwardThreads)
    norm_backward_kernel(BackwardRows<T> op) {
  __shared__ float shared[2][2 * kMostWarps];
  const int threads = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(blockIdx.x * op.block_rows);  // 32 bits, to save registers
  const int last = static_cast<int>(first + op.block_rows < op.rows ? first + op.block_rows : op.rows);
  const int groups = static_cast<int>(op.groups), start = static_cast<int>(blockIdx.y * op.cols);
  const float count = static_cast<float>(op.cols);
  const auto column = [&](int k) { return (static_cast<int>(threadIdx.x) + k * threads) * V; };
  const auto mine = [&](int k) { return column(k) < static_cast<int>(op.cols); };
  Stored<T, V> gain[K] = {};
  float gain_sum[K][V] = {}, bias_sum[K][V] = {};
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (mine(k)) gain[k] = stored<V>(op.gain + column(k));
  struct Row {
    Stored<T, V> dy[K], x[K], residual[K];
    float mean, rstd;
  };
  const auto load = [&](Row& row, int r) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!mine(k)) continue;
      row.dy[k] = stored<V>(op.dy.at(r, start + column(k)));
      row.x[k] = stored<V>(op.x.at(r, start + column(k)));
      if (op.residual.data != nullptr) row.residual[k] = stored<V>(op.residual.at(r, start + column(k)));
    }
    const int64_t at = static_cast<int64_t>(r) * groups + blockIdx.y;
    row.mean = op.center ? op.mean[at] : 0.0f;
    row.rstd = op.rstd[at];
  };
  Row row{}, next{};  // columns beyond the end stay 0
  if (kAhead<V, K> && first < last) load(next, first);
  for (int r = first; r < last; ++r) {
    if constexpr (kAhead<V, K>) {
      row = next;
      if (r + 1 < last) load(next, r + 1);
    } else {
      load(row, r);
    }
    float scaled[K][V], normal[K][V], sums[2] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float factor[V];
      values(gain[k], factor);
      values(row.dy[k], scaled[k]);
      values(row.x[k], normal[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float d = scaled[k][i], n = (normal[k][i] - row.mean) * row.rstd;
        gain_sum[k][i] = fmaf(d, n, gain_sum[k][i]);
        bias_sum[k][i] += d;
        scaled[k][i] = d * factor[i];
        normal[k][i] = n;
        sums[0] += scaled[k][i];
        sums[1] = fmaf(scaled[k][i], n, sums[1]);
      }
    }
    block_sums(sums, shared[r & 1]);
    const RowTerms terms(row.rstd, sums, count, op.center);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!mine(k)) continue;
      float out[V] = {};
      if (op.residual.data != nullptr) values(row.residual[k], out);
#pragma unroll
      for (int i = 0; i < V; ++i) out[i] += terms.gradient(scaled[k][i], normal[k][i]);
      put(op.dx.at(r, start + column(k)), V, out);
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!mine(k)) continue;
    const int64_t at = block_index() * op.cols + column(k);
    put(op.gain_sums + at, V, gain_sum[k]);
    if (op.bias_sums != nullptr) put(op.bias_sums + at, V, bias_sum[k]);
  }
}

/// Processes rows that are too long for the registers of a block. The sums stay in memory (in practice in the caches),
/// and rows are read twice.
template <typename T, int V>
__global__ void __launch_bounds__(kBackwardThreads) norm_backward_wide_kernel(BackwardRows<T> op) {
  __shared__ float shared[2][2 * kMostWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * op.block_rows, step = static_cast<int64_t>(blockDim.x) * V;
  const int64_t last = first + op.block_rows < op.rows ? first + op.block_rows : op.rows;
  const float count = static_cast<float>(op.cols);
  const int64_t start = blockIdx.y * op.cols;
  float* gain_sums = op.gain_sums + block_index() * op.cols;
  float* bias_sums = op.bias_sums == nullptr ? nullptr : op.bias_sums + block_index() * op.cols;
  for (int64_t r = first; r < last; ++r) {
    const int64_t at = r * op.groups + blockIdx.y;
    const float mean = op.center ? op.mean[at] : 0.0f, rstd = op.rstd[at];
    const auto load = [&](int64_t c, int n, float(&dy)[V], float(&x)[V], float(&gain)[V]) {
      get(op.dy.at(r, start + c), n, dy);
      get(op.x.at(r, start + c), n, x);
      get(op.gain + c, n, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = i < n ? (x[i] - mean) * rstd : 0.0f;
    };
    float sums[2] = {};
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * V; c < op.cols; c += step) {
      const int n = static_cast<int>(op.cols - c < V ? op.cols - c : V);
      float dy[V], x[V], gain[V];
      load(c, n, dy, x, gain);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sums[0] += dy[i] * gain[i];
        sums[1] = fmaf(dy[i] * gain[i], x[i], sums[1]);
        if (i >= n) continue;
        gain_sums[c + i] = fmaf(dy[i], x[i], r == first ? 0.0f : gain_sums[c + i]);
        if (bias_sums != nullptr) bias_sums[c + i] = (r == first ? 0.0f : bias_sums[c + i]) + dy[i];
      }
    }
    block_sums(sums, shared[r & 1]);
    const RowTerms terms(rstd, sums, count, op.center);
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * V; c < op.cols; c += step) {
      const int n = static_cast<int>(op.cols - c < V ? op.cols - c : V);
      float dy[V], x[V], gain[V], out[V] = {};
      load(c, n, dy, x, gain);
      if (op.residual.data != nullptr) get(op.residual.at(r, start + c), n, out);
#pragma unroll
      for (int i = 0; i < V; ++i) out[i] += terms.gradient(dy[i] * gain[i], x[i]);
      put(op.dx.at(r, start + c), n, out);
    }
  }
}

/// Threads per block, and columns per thread, for a row length. 0 columns select the kernel for long rows.
struct BackwardShape {
  int columns, threads;
};
BackwardShape backward_shape(int64_t cols) {
  for (const int columns : {8, 16})
    if (cols <= int64_t{columns} * kBackwardThreads)
      return {columns, static_cast<int>(std::max<int64_t>(kWarp, round_up(divide_up(cols, int64_t{columns}), kWarp)))};
  return {0, kBackwardThreads};
}

template <typename T, int V>
void launch_backward(Exec& ex, const BackwardRows<T>& op, const BackwardShape& shape, int64_t blocks) {
  const device::cuda::LaunchConfig grid{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(op.groups)),
                                        dim3(static_cast<unsigned>(shape.threads))};
  const cudaStream_t stream = device::cuda::stream_of(ex.device);
  if (shape.columns == 8) {
    device::cuda::launch(stream, grid, norm_backward_kernel<T, V, 8 / V>, op);
    return;
  }
  if constexpr (V > 1) {  // without vector accesses, the row would not fit the registers
    if (shape.columns == 16) {
      device::cuda::launch(stream, grid, norm_backward_kernel<T, V, 16 / V>, op);
      return;
    }
  }
  device::cuda::launch(stream, grid, norm_backward_wide_kernel<T, V>, op);
}

}  // namespace

void run(Exec& ex, const NormBackward& op) {
  for_compute_type(op.x.dtype, "norm x", [&]<typename T>(T) {
    constexpr int kPiece = wide_of<T>();
    const int64_t rows = op.x.rows(), cols = op.x.cols() / op.groups;
    TRAINER_CHECK(rows < INT32_MAX / 2, "norm backward over {} rows: CUDA kernels support fewer than {}", rows,
                  INT32_MAX / 2);
    const BackwardShape shape = backward_shape(cols);
    // The grid is one wave of blocks, whose number is limited by the registers of a multiprocessor.
    const int64_t most = device::cuda::facts_of(ex.device).multiprocessors *
                         std::max(1, (shape.columns == 8 ? kResidentThreads<T> : kBackwardThreads) / shape.threads);
    const int64_t block_rows = std::max<int64_t>(16, divide_up(rows * op.groups, most)),
                  blocks = divide_up(rows, block_rows), all_blocks = blocks * op.groups;
    const Scratch partials = ex.take("norm.partials", {op.dbias ? 2 * all_blocks : all_blocks, cols}, DType::f32);
    float* const gain_sums = partials.tensor().as<float>();
    const BackwardRows<T> args{rows_in<T>(op.dy),
                               rows_in<T>(op.x),
                               rows_in<T>(op.residual),
                               op.gain.as<T>(),
                               op.center ? op.mean.as<float>() : nullptr,
                               op.rstd.as<float>(),
                               rows_of<T>(op.dx),
                               gain_sums,
                               op.dbias ? gain_sums + all_blocks * cols : nullptr,
                               rows,
                               cols,
                               block_rows,
                               op.groups,
                               op.center};
    if (!ex.device.dry() && rows > 0 && cols > 0) {
      const bool whole = whole_pieces({op.dy, op.x, op.residual, op.dx, op.gain}, rows, cols, kPiece);
      whole ? launch_backward<T, kPiece>(ex, args, shape, blocks) : launch_backward<T, 1>(ex, args, shape, blocks);
    }
    add_up(ex, partials, {op.dgain, op.accumulate_gain}, {op.dbias, op.accumulate_bias});
  });
}

}  // namespace trainer::ops::cuda
