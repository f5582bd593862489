#pragma once
// Tiles of bf16 rows in shared memory and GEMMs on them, for attention_forward.cu and attention_backward.cu.

#include "ops/cuda/attention_args.h"
#include "ops/cuda/attention_layout.h"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {

/// Returns row `row`, head `head` of an operand.
template <typename T>
__device__ __forceinline__ T* row_of(const AttentionRows& x, int64_t row, int head, int head_dim) {
  return static_cast<T*>(x.data) + row * x.ld + static_cast<int64_t>(head) * head_dim;
}

/// 16 bytes of bf16.
struct alignas(16) Chunk {
  bf16 at[kChunk];
};

/// tile <- kRows rows of a head, beginning with `first_row`; zeros beyond `valid` rows and beyond the head size.
/// Asynchronous: complete after copies_wait() and a barrier. All kThreads threads of the block must call it.
template <int kCols, int kRows, int kThreads>
__device__ __forceinline__ void load_tile(bf16* tile, const AttentionRows& x, int64_t first_row, int valid, int head,
                                          int head_dim) {
  using Layout = TileLayout<kCols>;
  constexpr int kChunks = Layout::kRowChunks, kAll = kRows * kChunks;
  const bf16* const head_rows = row_of<const bf16>(x, first_row, head, head_dim);
  // If this loop were unrolled, the addresses of all steps would be kept in registers across the loop over tiles.
#pragma unroll 1
  for (int step = 0; step < (kAll + kThreads - 1) / kThreads; ++step) {
    const int i = static_cast<int>(threadIdx.x) + step * kThreads, row = i / kChunks, chunk = i % kChunks;
    if (kAll % kThreads != 0 && i >= kAll) break;
    bf16* const to = tile + Layout::offset(row, chunk);
    const int columns = row < valid ? head_dim - chunk * kChunk : 0;  // left in this row, including the chunk
    const bf16* const from = columns > 0 ? head_rows + row * x.ld + chunk * kChunk : static_cast<const bf16*>(x.data);
    if (x.vectors) {
      copy_16_async(to, from, columns > 0);
    } else {
      Chunk values{};
      for (int e = 0; e < kChunk; ++e)
        if (e < columns) values.at[e] = from[e];
      *reinterpret_cast<Chunk*>(to) = values;
    }
  }
}

/// sums[i][j] += left·rightᵀ: 16·kM rows of `left` times 8·kN rows of `right`, over all columns.
template <int kCols, int kM, int kN>
__device__ __forceinline__ void multiply_rows(float (&sums)[kM][kN][4], const bf16* left, BlockOffsets<kCols> left_at,
                                              const bf16* right, BlockOffsets<kCols> right_at) {
  static_assert(kN % 2 == 0);
#pragma unroll
  for (int step = 0; step < kCols / 16; ++step) {
    uint32_t a[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) load_matrices(a[i], left + left_at.at(i, step));
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      uint32_t b[4];
      load_matrices(b, right + right_at.at(j, step));
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        multiply_add(sums[i][2 * j], a[i], b[0], b[2]);
        multiply_add(sums[i][2 * j + 1], a[i], b[1], b[3]);
      }
    }
  }
}

/// Weights of a GEMM, rounded to bf16, in the layout of a left operand: 16·kM rows × 16·kK columns.
template <int kM, int kK>
struct Weights {
  uint32_t at[kM][kK][4];
};
/// Converts a block of sums to the left operand of the next GEMM: the layouts agree lane by lane.
template <int kM, int kN>
__device__ __forceinline__ Weights<kM, kN / 2> as_weights(const float (&sums)[kM][kN][4]) {
  Weights<kM, kN / 2> weights;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      const float(&low)[4] = sums[i][2 * j];
      const float(&high)[4] = sums[i][2 * j + 1];
      weights.at[i][j][0] = bf16_pair(low[0], low[1]);
      weights.at[i][j][1] = bf16_pair(low[2], low[3]);
      weights.at[i][j][2] = bf16_pair(high[0], high[1]);
      weights.at[i][j][3] = bf16_pair(high[2], high[3]);
    }
  }
  return weights;
}

/// sums[i][j] += weights·rows, with 16·kK rows of a tile, columns 16·first_block ….
template <int kCols, int kM, int kN, int kK>
__device__ __forceinline__ void add_weighted(float (&sums)[kM][kN][4], const Weights<kM, kK>& weights, const bf16* rows,
                                             BlockOffsets<kCols> at, int first_block = 0) {
#pragma unroll
  for (int step = 0; step < kK; ++step) {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      uint32_t b[4];
      load_matrices_transposed(b, rows + at.at(step, first_block + j));
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        multiply_add(sums[i][2 * j], weights.at[i][step], b[0], b[1]);
        multiply_add(sums[i][2 * j + 1], weights.at[i][step], b[2], b[3]);
      }
    }
  }
}

/// tile rows first_row …, columns 16·first_block … <- factors[i][half]·sums, rounded. Called by one warp.
template <int kCols, int kM, int kN>
__device__ __forceinline__ void put_block(bf16* tile, const float (&sums)[kM][kN][4], const float (&factors)[kM][2],
                                          int first_row, int first_block, int lane) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * i + 8 * half + lane / 4;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        bf16* const to = tile + TileLayout<kCols>::offset(row, 2 * first_block + j) + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(to) =
            bf16_pair(sums[i][j][2 * half] * factors[i][half], sums[i][j][2 * half + 1] * factors[i][half]);
      }
    }
  }
}

/// x rows `row` …, columns first_column … += factor·sums, in f32; the first `valid` rows. Called by one warp.
template <int kM, int kN>
__device__ __forceinline__ void add_block(const AttentionRows& x, int64_t row, int valid, int head, int head_dim,
                                          const float (&sums)[kM][kN][4], float factor, int first_column, int lane) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = 16 * i + 8 * half + lane / 4;
      if (r >= valid) continue;
      float* const to = row_of<float>(x, row + r, head, head_dim);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int column = first_column + 8 * j + lane % 4 * 2;
        const float low = sums[i][j][2 * half] * factor, high = sums[i][j][2 * half + 1] * factor;
        if (x.vectors && column + 1 < head_dim) {
          Pack<float, 2>& pair = *reinterpret_cast<Pack<float, 2>*>(to + column);
          pair = {pair.values[0] + low, pair.values[1] + high};
        } else {
          if (column < head_dim) to[column] += low;
          if (column + 1 < head_dim) to[column + 1] += high;
        }
      }
    }
  }
}

/// x rows `row` … <- tile rows first_row …, the first `valid` of kRows. Called by one warp.
template <int kCols, int kRows>
__device__ __forceinline__ void store_rows(const AttentionRows& x, int64_t row, int valid, int head, int head_dim,
                                           const bf16* tile, int first_row, int lane) {
  using Layout = TileLayout<kCols>;
  bf16* const head_rows = row_of<bf16>(x, row, head, head_dim);
  for (int i = lane; i < kRows * Layout::kRowChunks; i += 32) {
    const int r = i / Layout::kRowChunks, chunk = i % Layout::kRowChunks, column = chunk * kChunk;
    if (r >= valid || column >= head_dim) continue;
    const Chunk values = *reinterpret_cast<const Chunk*>(tile + Layout::offset(first_row + r, chunk));
    bf16* const to = head_rows + r * x.ld + column;
    if (x.vectors) {
      *reinterpret_cast<Chunk*>(to) = values;
    } else {
      for (int e = 0; e < kChunk; ++e)
        if (column + e < head_dim) to[e] = values.at[e];
    }
  }
}

}  // namespace trainer::ops::cuda
