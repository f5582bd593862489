#pragma once
// Sums whose order depends only on shapes and the GPU: over the threads of a block, and over rows, with partial sums.
#include "ops/cuda/map.cuh"
#include "ops/reduce.h"

namespace trainer::ops::cuda {

inline constexpr int kWarp = 32, kMostWarps = 32;  // threads of a warp; warps of a block

/// Sums K values over a one-dimensional block of whole warps, with one barrier. All threads get bitwise identical
/// results. `shared` must have room for K·kMostWarps values. The next call must use different memory, or follow a
/// barrier.
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

/// Reads the gains of a norm, and adds `shift` to them (gain_shift()).
template <typename T, int V>
__device__ inline void get_gains(const T* from, int n, float shift, float (&gain)[V]) {
  get(from, n, gain);
#pragma unroll
  for (int i = 0; i < V; ++i) gain[i] += shift;
}

/// The destination of sums over rows: [F] f32; empty: none.
struct ColumnSums {
  Tensor sums;
  bool accumulate = false;
};
/// sums[c] (+)= Σ_b partials[b, c] for `first` and, unless it is empty, `second`, in one launch. `partials` [·, F] f32
/// contains the blocks of `first`, followed by those of `second`.
void add_up(Exec& ex, const Tensor& partials, const ColumnSums& first, const ColumnSums& second);

}  // namespace trainer::ops::cuda
