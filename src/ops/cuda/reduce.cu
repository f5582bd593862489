#include "ops/cuda/reduce.cuh"

namespace trainer::ops::cuda {
namespace {

// A block sums 32 threads' columns. Its warps take every kRowWarps-th row, and their sums are added in order at the
// end.
constexpr int kRowWarps = 8;
constexpr int64_t kBlocks = 1024;  // aimed at: several per multiprocessor
constexpr int64_t kLeastRows = 64;

/// Adds the sums of the warps of a block, in order. Warp 0 holds the result.
template <int V>
__device__ inline void add_warps(float (&sum)[V], float (*shared)[kWarp][V]) {
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
#pragma unroll
  for (int i = 0; i < V; ++i) shared[warp][lane][i] = sum[i];
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kRowWarps; ++w)
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += shared[w][lane][i];
}

template <typename T, int V>
__global__ void __launch_bounds__(kWarp* kRowWarps)
    column_sum_kernel(Rows<const T> x, int64_t rows, int64_t cols, int64_t block_rows, float* partials) {
  __shared__ float shared[kRowWarps][kWarp][V];
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * V;
  const int n = static_cast<int>(c >= cols ? 0 : cols - c < V ? cols - c : V);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * block_rows;
  const int64_t last = first + block_rows < rows ? first + block_rows : rows;
  float sum[V] = {};
  if (n > 0) {
    constexpr int kAhead = 4;
    for (int64_t r = first + threadIdx.y; r < last; r += kAhead * kRowWarps) {
      float next[kAhead][V];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int64_t row = r + k * kRowWarps;
        get(x.at(row < last ? row : r, c), n, next[k]);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (r + k * kRowWarps < last)
#pragma unroll
          for (int i = 0; i < V; ++i) sum[i] += next[k][i];
    }
  }
  add_warps(sum, shared);
  if (threadIdx.y == 0 && n > 0)
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < n) partials[static_cast<int64_t>(blockIdx.y) * cols + c + i] = sum[i];
}

struct PartialSums {
  const float* partials;
  int64_t blocks, cols;  // of one sum
  struct Result {
    float* sums;
    bool accumulate;
  } results[kMostSums];
};

/// A row of blocks makes one sum.
__global__ void __launch_bounds__(kWarp* kRowWarps) partial_sum_kernel(PartialSums op) {
  __shared__ float shared[kRowWarps][kWarp][1];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const float* const partials = op.partials + blockIdx.y * op.blocks * op.cols;
  float sum[1] = {};
  if (c < op.cols) {
#pragma unroll 8
    for (int64_t b = threadIdx.y; b < op.blocks; b += kRowWarps) sum[0] += partials[b * op.cols + c];
  }
  add_warps(sum, shared);
  if (threadIdx.y != 0 || c >= op.cols) return;
#pragma unroll
  for (int i = 0; i < kMostSums; ++i) {  // parameters are not indexed
    if (i != static_cast<int>(blockIdx.y)) continue;
    float* const sums = op.results[i].sums;
    sums[c] = op.results[i].accumulate ? sums[c] + sum[0] : sum[0];
  }
}

template <typename T, int V>
void launch_column_sum(Exec& ex, const ColumnSum& op, int64_t block_rows, const Tensor& partials) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const dim3 blocks(static_cast<unsigned>(divide_up(cols, int64_t{kWarp * V})), static_cast<unsigned>(partials.rows()));
  device::cuda::launch(device::cuda::stream_of(ex.device), {blocks, dim3(kWarp, kRowWarps)}, column_sum_kernel<T, V>,
                       rows_in<T>(op.x), rows, cols, block_rows, partials.as<float>());
}

}  // namespace

void sum_partials(Exec& ex, const Tensor& partials, std::initializer_list<ColumnSums> results) {
  PartialSums op{partials.as<float>(), 0, partials.cols(), {}};
  unsigned count = 0;
  for (const ColumnSums& result : results) {
    if (!result.sums) continue;
    TRAINER_CHECK(count < kMostSums && result.sums.count() == op.cols, "sum {} of {} columns", count, op.cols);
    op.results[count++] = {result.sums.as<float>(), result.accumulate};
  }
  if (count == 0 || op.cols == 0) return;
  op.blocks = partials.rows() / count;
  device::cuda::launch(device::cuda::stream_of(ex.device),
                       {dim3(static_cast<unsigned>(divide_up(op.cols, int64_t{kWarp})), count), dim3(kWarp, kRowWarps)},
                       partial_sum_kernel, op);
}

template <typename T>
void sum_columns(Exec& ex, const ColumnSum& op) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const int64_t groups = divide_up(std::max<int64_t>(cols, 1), int64_t{kWarp} * wide_of<T>());
  const int64_t block_rows = std::max(kLeastRows, divide_up(rows * groups, kBlocks));
  const Scratch partials = ex.take("column_sum.partials", {divide_up(rows, block_rows), cols}, DType::f32);
  if (ex.device.dry()) return;
  if (rows > 0 && cols > 0) {
    aligned_rows({op.x}, rows, wide_of<T>()) ? launch_column_sum<T, wide_of<T>()>(ex, op, block_rows, partials)
                                             : launch_column_sum<T, 1>(ex, op, block_rows, partials);
  }
  sum_partials(ex, partials, {{op.sums, op.accumulate}});
}
template void sum_columns<float>(Exec&, const ColumnSum&);
template void sum_columns<bf16>(Exec&, const ColumnSum&);

}  // namespace trainer::ops::cuda
