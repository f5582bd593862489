#include "ops/cuda/reduce.cuh"

#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

// A block sums 32 threads' columns. Its warps take every kRowWarps-th row, and their sums are added in order at the
// end.
constexpr int kRowWarps = 8;
constexpr int64_t kBlocks = 1024;  // aimed at: several per multiprocessor
constexpr int64_t kLeastRows = 64;

/// Adds the sums of the warps of a block, in order. Warp 0 holds the result.
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
  add_warps<kRowWarps>(sum, shared);
  if (threadIdx.y == 0 && n > 0)
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < n) partials[static_cast<int64_t>(blockIdx.y) * cols + c + i] = sum[i];
}

constexpr int kMostSums = 8;  // of a launch: what a layer leaves
constexpr int kSumWarps = 16;

/// Sums of one launch.
struct BlockSums {
  struct Sum {
    const float* partials;
    float* sums;
    int blocks, cols;
    bool accumulate;
  } all[kMostSums];
};

/// A row of thread blocks makes one sum, each 32 columns of it.
__global__ void __launch_bounds__(kWarp* kSumWarps) add_up_kernel(BlockSums op) {
  __shared__ float shared[kSumWarps][kWarp][1];
  BlockSums::Sum mine = op.all[0];
#pragma unroll
  for (int i = 1; i < kMostSums; ++i)  // parameters are not indexed
    if (i == static_cast<int>(blockIdx.y)) mine = op.all[i];
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

void add_up(Exec& ex, std::span<const PartialSums::Sum> sums) {
  if (ex.device.dry()) return;
  for (; !sums.empty(); sums = sums.subspan(std::min<size_t>(kMostSums, sums.size()))) {
    const auto some = sums.first(std::min<size_t>(kMostSums, sums.size()));
    BlockSums op{};
    int64_t most = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      const int64_t cols = some[i].into.sums.count(), blocks = cols == 0 ? 0 : some[i].partials.count() / cols;
      TRAINER_CHECK(cols < INT32_MAX / 2 && blocks < INT32_MAX, "sums of {} blocks of {} columns", blocks, cols);
      op.all[i] = {some[i].partials.as<float>(), some[i].into.sums.as<float>(), static_cast<int>(blocks),
                   static_cast<int>(cols), some[i].into.accumulate};
      most = std::max(most, cols);
    }
    if (most == 0) continue;
    const dim3 blocks(static_cast<unsigned>(divide_up(most, int64_t{kWarp})), static_cast<unsigned>(some.size()));
    device::cuda::launch(device::cuda::stream_of(ex.device), {blocks, dim3(kWarp, kSumWarps)}, add_up_kernel, op);
  }
}

void add_up_or_leave(Exec& ex, Scratch partials, std::initializer_list<ColumnSums> sums, PartialSums* later) {
  if (later != nullptr) return later->add(std::move(partials), sums);
  PartialSums alone;
  alone.add(std::move(partials), sums);
  add_up(ex, alone.waiting());
}

void run(Exec& ex, const ColumnSum& op) {
  for_compute_type(op.x.dtype, "column sum x", [&]<typename T>(T) {
    const int64_t rows = op.x.rows(), cols = op.x.cols();
    const int64_t groups = divide_up(std::max<int64_t>(cols, 1), int64_t{kWarp} * wide_of<T>());
    const int64_t block_rows = std::max(kLeastRows, divide_up(rows * groups, kBlocks));
    Scratch partials = ex.take("column_sum.partials", {divide_up(rows, block_rows), cols}, DType::f32);
    if (!ex.device.dry() && rows > 0 && cols > 0) {
      aligned_rows({op.x}, rows, wide_of<T>()) ? launch_column_sum<T, wide_of<T>()>(ex, op, block_rows, partials)
                                               : launch_column_sum<T, 1>(ex, op, block_rows, partials);
    }
    add_up_or_leave(ex, std::move(partials), {{op.sums, op.accumulate}}, op.later);
  });
}

}  // namespace trainer::ops::cuda
