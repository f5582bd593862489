#include "ops/merge_attention.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Merge {
  Rows<const T> part;
  Rows<float> sum;
  const float* part_lse;
  float* sum_lse;
  int64_t rows, heads, head_dim, q_len;
  bool first;
};

/// `lanes` adjacent lanes, a power of two, share each row and head; a lane reads V elements at a time.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads) merge_kernel(Merge<T> op, int lanes) {
  const int64_t i = quotient(int64_t{blockIdx.x} * kThreads + threadIdx.x, lanes), row = quotient(i, op.heads);
  const int64_t sequence = quotient(row, op.q_len), head = i - row * op.heads;
  const int64_t at = (sequence * op.heads + head) * op.q_len + row - sequence * op.q_len;
  const bool inside = row < op.rows;
  const float part_lse = inside ? op.part_lse[at] : 0, sum_lse = inside && !op.first ? op.sum_lse[at] : 0;
  sync_warp();  // all lanes of the row have read its log-sum-exp
  if (!inside || (!op.first && part_lse == sum_lse && part_lse == -INFINITY)) return;  // still no key, and a sum of 0
  const float top = part_lse > sum_lse ? part_lse : sum_lse;
  const float ours = expf(part_lse - top), theirs = expf(sum_lse - top), whole = ours + theirs;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  if (lane == 0) op.sum_lse[at] = op.first ? part_lse : top + logf(whole);
  for (int64_t c = lane * V; c < op.head_dim; c += lanes * V) {
    const int64_t column = head * op.head_dim + c;
    float part[V], sum[V];
    get(op.part.at(row, column), V, part);
    if (!op.first) {
      get(op.sum.at(row, column), V, sum);
#pragma unroll
      for (int e = 0; e < V; ++e) part[e] = fmaf(part[e], ours / whole, sum[e] * (theirs / whole));
    }
    put(op.sum.at(row, column), V, part);
  }
}

template <typename T, int V>
void merge(Exec& ex, const Merge<T>& op) {
  int lanes = 1;
  while (lanes < 32 && lanes * V < op.head_dim) lanes *= 2;
  const auto blocks = static_cast<unsigned>(divide_up(op.rows * op.heads * lanes, int64_t{kThreads}));
  device::cuda::launch(device::cuda::stream_of(ex.device), {dim3(blocks), dim3(kThreads)}, merge_kernel<T, V>, op,
                       lanes);
}

}  // namespace

void run(Exec& ex, const MergeAttention& op) {
  for_compute_type(op.part.dtype, "merged attention part", [&]<typename T>(T) {
    constexpr int kPiece = wide_of<T>();
    const int64_t rows = op.part.rows(), head_dim = op.part.cols() / op.heads;
    if (ex.device.dry() || rows == 0) return;
    const Merge<T> args{rows_in<T>(op.part),
                        rows_of<float>(op.sum),
                        op.part_lse.as<float>(),
                        op.sum_lse.as<float>(),
                        rows,
                        op.heads,
                        head_dim,
                        op.q_len,
                        op.first};
    head_dim % kPiece == 0 && aligned_rows({op.part, op.sum}, rows, kPiece) ? merge<T, kPiece>(ex, args)
                                                                            : merge<T, 1>(ex, args);
  });
}

}  // namespace trainer::ops::cuda
