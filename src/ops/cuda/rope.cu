#include "ops/rope.h"

#include "ops/cuda/map.cuh"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

constexpr int kThreads = 256, kHeads = 4;  // heads of a row for which a thread uses the same cosines and sines

struct RopeSizes {
  int64_t rows, heads, head_dim, half, rows_per_sequence, first_position;
  const int32_t* position_ids;  // null: counted from first_position
};

/// A thread rotates V pairs (i, i + half) of up to kHeads heads of one row.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(Rows<T> x, Rows<const float> table, RopeSizes sizes, float sign) {
  const auto pieces = static_cast<unsigned>(sizes.half / V),
             groups = static_cast<unsigned>(divide_up(sizes.heads, int64_t{kHeads}));
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = quotient(item, static_cast<int64_t>(pieces * groups));
  if (row >= sizes.rows) return;
  const auto rest = static_cast<unsigned>(item - row * (pieces * groups));
  const int64_t i = static_cast<int64_t>(rest % pieces) * V, head = static_cast<int64_t>(rest / pieces) * kHeads;
  const int64_t position =
      sizes.position_ids != nullptr
          ? sizes.position_ids[row]
          : sizes.first_position + row - quotient(row, sizes.rows_per_sequence) * sizes.rows_per_sequence;
  float cosine[V], sine[V];
  get(table.at(position, i), V, cosine);
  get(table.at(position, sizes.half + i), V, sine);
  float low[kHeads][V], high[kHeads][V];
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
    if (head + h < sizes.heads) {
      get(x.at(row, (head + h) * sizes.head_dim + i), V, low[h]);
      get(x.at(row, (head + h) * sizes.head_dim + sizes.half + i), V, high[h]);
    }
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
    if (head + h < sizes.heads) {
      float first[V], second[V];
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float c = cosine[k], s = sine[k] * sign;
        first[k] = fmaf(low[h][k], c, -(high[h][k] * s));
        second[k] = fmaf(high[h][k], c, low[h][k] * s);
      }
      put(x.at(row, (head + h) * sizes.head_dim + i), V, first);
      put(x.at(row, (head + h) * sizes.head_dim + sizes.half + i), V, second);
    }
}

template <typename T, int V>
void rotate(Exec& ex, const Rope& op) {
  const int64_t half = op.table.cols() / 2, heads = op.x.cols() / op.head_dim;
  const RopeSizes sizes{op.x.rows(),
                        heads,
                        op.head_dim,
                        half,
                        op.rows_per_sequence,
                        op.first_position,
                        op.position_ids ? op.position_ids.as<int32_t>() : nullptr};
  const int64_t items = sizes.rows * (half / V) * divide_up(heads, int64_t{kHeads});
  if (items == 0) return;
  device::cuda::launch(device::cuda::stream_of(ex.device),
                       {dim3(static_cast<unsigned>(divide_up(items, int64_t{kThreads}))), dim3(kThreads)},
                       rope_kernel<T, V>, rows_of<T>(op.x), rows_in<float>(op.table), sizes, op.inverse ? -1.0f : 1.0f);
}

}  // namespace

void run(Exec& ex, const Rope& op) {
  for_compute_type(op.x.dtype, "rotary x", [&]<typename T>(T) {
    if (ex.device.dry()) return;
    constexpr int kPiece = 4;
    const bool whole = op.head_dim % kPiece == 0 && op.table.cols() / 2 % kPiece == 0 &&
                       aligned_rows({op.x}, op.x.rows(), kPiece) && aligned_rows({op.table}, op.table.rows(), kPiece);
    whole ? rotate<T, kPiece>(ex, op) : rotate<T, 1>(ex, op);
  });
}

}  // namespace trainer::ops::cuda
