#pragma once
// Sums whose order is a function of shapes: over the threads of a block, and over rows by partial sums.
#include "ops/cuda/map.cuh"
#include "ops/elementwise.h"

namespace trainer::ops::cuda {

inline constexpr int kWarp = 32, kMostWarps = 32;  // threads of a warp; warps of a block

/// Sums K values over a one-dimensional block of whole warps, with one barrier. Every thread has the same bits.
/// `shared` holds K·kMostWarps values. The next call must use other memory, or follow a barrier.
template <typename T, int K>
__device__ inline void block_sums(T (&values)[K], T* shared) {
#pragma unroll
  for (int k = 0; k < K; ++k) values[k] = warp_sum(values[k]);
  const int lane = lane_id(), warps = static_cast<int>(blockDim.x) / kWarp;
  if (lane == 0) {
#pragma unroll
    for (int k = 0; k < K; ++k) shared[k * kMostWarps + static_cast<int>(threadIdx.x) / kWarp] = values[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) values[k] = warp_sum(lane < warps ? shared[k * kMostWarps + lane] : T(0));
}

/// Where sums of columns go, f32; empty: nowhere.
struct ColumnSums {
  Tensor sums;
  bool accumulate = false;
};
/// sums[c] (+)= Σ_b partials[b, c] on the stream; partials [blocks, cols] f32, packed. Several sums, kMostSums at most,
/// have their blocks one after the other and take one launch; empty ones have none.
inline constexpr int kMostSums = 3;
void sum_partials(Exec& ex, const Tensor& partials, std::initializer_list<ColumnSums> results);

/// Runs a ColumnSum whose operands are checked. Scratch "column_sum.partials" is a function of the shape.
template <typename T>
void sum_columns(Exec& ex, const ColumnSum& op);

}  // namespace trainer::ops::cuda
