#pragma once
// GEMMs of 64 × 64 blocks in f32 with 256 threads, for attention with any head size. Thread (ty, tx) of 16 × 16 owns
// rows 4·ty … 4·ty + 3. Sixteen adjacent lanes hold a row.
#include <type_traits>

#include "ops/cuda/attention_args.h"
#include "ops/cuda/attention_dropout.cuh"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {

inline constexpr int kBlockRows = 64, kBlockThreads = 256;
/// Row stride of a block in shared memory. Rows are 16-byte aligned, and eight successive rows start in different
/// banks.
inline constexpr int kBlockLd = kBlockRows + 4;
inline constexpr int kBlockElements = kBlockRows * kBlockLd;
/// Maximum number of column blocks of a head that a thread block accumulates; wider heads are split into slices.
inline constexpr int kMaxColumnBlocks = 4;

struct alignas(16) Float4 {
  float at[4];
};
__device__ __forceinline__ Float4 four_at(const float* x) { return *reinterpret_cast<const Float4*>(x); }

/// block <- rows first_row …, columns `column` … of a head; zeros beyond `valid` rows and beyond the head.
template <typename T>
__device__ __forceinline__ void load_block(float* block, const AttentionRows& x, int64_t first_row, int valid, int head,
                                           int head_dim, int column) {
  const T* const from =
      static_cast<const T*>(x.data) + first_row * x.ld + static_cast<int64_t>(head) * head_dim + column;
  const int c = static_cast<int>(threadIdx.x) % kBlockRows;
  for (int r = static_cast<int>(threadIdx.x) / kBlockRows; r < kBlockRows; r += kBlockThreads / kBlockRows)
    block[r * kBlockLd + c] = r < valid && column + c < head_dim ? static_cast<float>(from[r * x.ld + c]) : 0.0f;
}

/// sums[i][j] += Σ_k left[4·ty + i][k]·right[tx + 16·j][k]
__device__ __forceinline__ void multiply_blocks(float (&sums)[4][4], const float* left, const float* right, int ty,
                                                int tx) {
  for (int k = 0; k < kBlockRows; k += 4) {
    Float4 a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = four_at(left + (4 * ty + i) * kBlockLd + k);
      b[i] = four_at(right + (tx + 16 * i) * kBlockLd + k);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(a[i].at[e], b[j].at[e], sums[i][j]);
      }
    }
  }
}
/// sums[i][j] += Σ_k weights[4·ty + i][k]·rows[k][4·tx + j]
__device__ __forceinline__ void add_weighted_block(float (&sums)[4][4], const float* weights, const float* rows, int ty,
                                                   int tx) {
  for (int k = 0; k < kBlockRows; k += 4) {
    Float4 a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = four_at(weights + (4 * ty + i) * kBlockLd + k);
      b[i] = four_at(rows + (k + i) * kBlockLd + 4 * tx);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(a[i].at[e], b[e].at[j], sums[i][j]);
      }
    }
  }
}

/// x rows first_row + 4·ty + i, columns column + 4·tx + j <- factors[i]·sums[i][j], as far as they exist; added to them
/// if x.adds.
template <typename T>
__device__ __forceinline__ void store_block(const AttentionRows& x, int64_t first_row, int valid, int head,
                                            int head_dim, int column, const float (&sums)[4][4],
                                            const float (&factors)[4], int ty, int tx) {
  const int64_t at = first_row * x.ld + static_cast<int64_t>(head) * head_dim + column;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (4 * ty + i >= valid || column + 4 * tx + j >= head_dim) continue;
      const int64_t element = at + (4 * ty + i) * x.ld + 4 * tx + j;
      const float value = sums[i][j] * factors[i];
      if (x.adds) {
        static_cast<float*>(x.data)[element] += value;
      } else {
        static_cast<T*>(x.data)[element] = T(value);
      }
    }
  }
}

/// Sets args.slices. Then calls `call` with the number of column blocks that a thread accumulates, as a constant.
template <typename F>
void with_column_blocks(AttentionArgs& args, F&& call) {
  const int blocks = (args.head_dim + kBlockRows - 1) / kBlockRows;
  args.slices = (blocks + kMaxColumnBlocks - 1) / kMaxColumnBlocks;
  if (blocks == 1) {
    call(std::integral_constant<int, 1>());
  } else if (blocks == 2) {
    call(std::integral_constant<int, 2>());
  } else {
    call(std::integral_constant<int, kMaxColumnBlocks>());
  }
}

}  // namespace trainer::ops::cuda
