#include "ops/cuda/reduce.cuh"

#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

// A block sums the columns of 32 threads. Each of its warps sums every kRowWarps-th row, and the warps' sums are added
// in order at the end.
constexpr int kRowWarps = 8;
constexpr int kBlocks = 4;  // on a multiprocessor, all at once: a second wave would keep only some of them busy
constexpr int64_t kLeastRows = 64;

/// Adds the sums of the warps of a block, in order. Warp 0 gets the result.
template <int kWarps, int V>
__device__ inline void add_warps(float (&sum)[V], float (&shared)[kWarps][kWarp][V]) {
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
#pragma unroll
  for (int i = 0; i < V; ++i) shared[warp][lane][i] = sum[i];
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kWarps; ++w)
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += shared[w][lane][i];
}

template <typename T, int V>
__global__ void __launch_bounds__(kWarp* kRowWarps, kBlocks)
    column_sum_kernel(Rows<const T> x, int64_t rows, int64_t cols, int64_t block_rows, float* partials) {
  __shared__ float shared[kRowWarps][kWarp][V];
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * V;
  const int n = static_cast<int>(c >= cols ? 0 : cols - c < V ? cols - c : V);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * block_rows;
  const int64_t last = first + block_rows < rows ? first + block_rows : rows;
  float sum[V] = {};
  if (V > 1 && n == V) {  // the loads of the next rows are in flight while rows are added
    constexpr int kAhead = 4;
    Stored<T, V> next[kAhead];
    const auto load = [&](int64_t r) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (r + k * kRowWarps < last) next[k] = stored<V>(x.at(r + k * kRowWarps, c));
    };
    load(first + threadIdx.y);
    for (int64_t r = first + threadIdx.y; r < last; r += kAhead * kRowWarps) {
      Stored<T, V> now[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) now[k] = next[k];
      load(r + kAhead * kRowWarps);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        float row[V];
        values(now[k], row);
        if (r + k * kRowWarps < last)
#pragma unroll
          for (int i = 0; i < V; ++i) sum[i] += row[i];
      }
    }
  } else if (n > 0) {
    for (int64_t r = first + threadIdx.y; r < last; r += kRowWarps) {
      float row[V];
      get(x.at(r, c), n, row);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += row[i];
    }
  }
  add_warps<kRowWarps>(sum, shared);
  if (threadIdx.y == 0 && n > 0)
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < n) partials[static_cast<int64_t>(blockIdx.y) * cols + c + i] = sum[i];
}

constexpr int kSumWarps = 16;

/// One of the sums of a launch: sums [cols] (+)= Σ partials [blocks, cols].
struct BlockSum {
  const float* partials = nullptr;
  float* sums = nullptr;
  int blocks = 0, cols = 0;
  bool accumulate = false;
};

/// The first row of thread blocks computes the sum `mine`, the second row the sum with the other arguments and the same
/// extents; a block computes 32 columns. (An array of both sums, indexed by the row, would be spilled to local memory.)
__global__ void __launch_bounds__(kWarp* kSumWarps)
    add_up_kernel(BlockSum mine, const float* partials, float* sums, bool accumulate) {
  __shared__ float shared[kSumWarps][kWarp][1];
  if (blockIdx.y == 1) mine.partials = partials, mine.sums = sums, mine.accumulate = accumulate;
  const int c = static_cast<int>(blockIdx.x * kWarp + threadIdx.x);
  if (static_cast<int>(blockIdx.x) * kWarp >= mine.cols) return;
  float sum[1] = {};
  if (c < mine.cols) {
#pragma unroll 8
    for (int b = static_cast<int>(threadIdx.y); b < mine.blocks; b += kSumWarps)
      sum[0] += mine.partials[static_cast<int64_t>(b) * mine.cols + c];
  }
  add_warps<kSumWarps>(sum, shared);
  if (threadIdx.y == 0 && c < mine.cols) mine.sums[c] = mine.accumulate ? mine.sums[c] + sum[0] : sum[0];
}

template <typename T, int V>
void launch_column_sum(Exec& ex, const ColumnSum& op, int64_t block_rows, const Tensor& partials) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const dim3 blocks(static_cast<unsigned>(divide_up(cols, int64_t{kWarp * V})), static_cast<unsigned>(partials.rows()));
  device::cuda::launch(device::cuda::stream_of(ex.device), {blocks, dim3(kWarp, kRowWarps)}, column_sum_kernel<T, V>,
                       rows_in<T>(op.x), rows, cols, block_rows, partials.as<float>());
}

}  // namespace

void add_up(Exec& ex, const Tensor& partials, const ColumnSums& first, const ColumnSums& second) {
  const int64_t cols = partials.cols(), sums = second.sums ? 2 : 1, blocks = partials.rows() / sums;
  TRAINER_CHECK(first.sums.count() == cols && (!second.sums || second.sums.count() == cols) && cols < INT32_MAX / 2 &&
                    blocks < INT32_MAX,
                "add_up(): {} sums of {} elements do not match {} blocks of {} columns", sums, first.sums.count(),
                blocks, cols);
  if (ex.device.dry() || cols == 0) return;
  const float* const from = partials.as<float>();
  const dim3 grid(static_cast<unsigned>(divide_up(cols, int64_t{kWarp})), static_cast<unsigned>(sums));
  device::cuda::launch(
      device::cuda::stream_of(ex.device), {grid, dim3(kWarp, kSumWarps)}, add_up_kernel,
      BlockSum{from, first.sums.as<float>(), static_cast<int>(blocks), static_cast<int>(cols), first.accumulate},
      from + blocks * cols, second.sums ? second.sums.as<float>() : nullptr, second.accumulate);
}

void run(Exec& ex, const ColumnSum& op) {
  for_compute_type(op.x.dtype, "column sum x", [&]<typename T>(T) {
    const int64_t rows = op.x.rows(), cols = op.x.cols();
    const int64_t groups = divide_up(std::max<int64_t>(cols, 1), int64_t{kWarp} * wide_of<T>());
    const int64_t row_blocks = std::max<int64_t>(1, kBlocks * ex.device.gpu().multiprocessors / groups);
    const int64_t block_rows = std::max(kLeastRows, divide_up(rows, row_blocks));
    const Scratch partials = ex.take("column_sum.partials", {divide_up(rows, block_rows), cols}, DType::f32);
    if (!ex.device.dry() && rows > 0 && cols > 0) {
      aligned_rows({op.x}, rows, wide_of<T>()) ? launch_column_sum<T, wide_of<T>()>(ex, op, block_rows, partials)
                                               : launch_column_sum<T, 1>(ex, op, block_rows, partials);
    }
    add_up(ex, partials, {op.sums, op.accumulate}, {});
  });
}

}  // namespace trainer::ops::cuda
