// Attention backward in bf16 on tensor cores, from the log-sum-exp (Dao 2023). One kernel makes two passes. The first
// keeps a tile of keys and passes over queries for dk and dv. The second keeps a tile of queries and passes over keys
// for dq. Both compute scores and their gradients, which takes 7 products instead of 5. In return every sum has one
// owner and a fixed order without atomics. Nor are f32 parts of dq written to memory: S/128 of them would be an s×s
// matrix. The tiles kept are left factors. So probabilities and score gradients become left factors of the second
// products within registers.
#include "ops/cuda/attention_dropout.cuh"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_tile.cuh"

namespace trainer::ops::cuda {
namespace {

/// A warp owns 16 rows of the tiles kept. For the widest heads two warps share rows and halve the columns of the sums,
/// which would not fit the registers of one. Passing tiles are shorter for the same reason.
template <int kCols, bool kDropout>
struct BackwardShape {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kColumnWarps = kCols <= 128 ? 1 : 2;
  /// Rows of the tiles kept.
  static constexpr int kKept = 16 * kWarps / kColumnWarps;
  /// Rows of the passing tiles, two of each in memory.
  static constexpr int kPassing = kCols <= (kDropout ? 64 : 128) ? 64 : 32;
  static constexpr int kSumCols = kCols / kColumnWarps;
  static constexpr int kSharedBytes = (2 * kKept + 4 * kPassing) * kCols * static_cast<int>(sizeof(bf16)) +
                                      4 * kPassing * static_cast<int>(sizeof(float));
};

constexpr float kLog2e = 1.44269504088896340736f;

/// With kKeysKept, k and v are kept, and q and dout of all heads of the group pass. Else it is the reverse.
template <int kCols, bool kKeysKept, bool kDropout>
__global__ void __launch_bounds__(BackwardShape<kCols, kDropout>::kThreads, 1)
    attention_backward_kernel(const AttentionArgs args) {
  using Shape = BackwardShape<kCols, kDropout>;
  constexpr int kKept = Shape::kKept, kPassing = Shape::kPassing, kN = kPassing / 8, kTile = kPassing * kCols;
  bf16* const kept_a = dynamic_shared<bf16>();                                 // k or q
  bf16* const kept_b = kept_a + kKept * kCols;                                 // v or dout
  bf16* const passing_a = kept_b + kKept * kCols;                              // q or k, two tiles
  bf16* const passing_b = passing_a + 2 * kTile;                               // dout or v
  float* const passing_lse = reinterpret_cast<float*>(passing_b + 2 * kTile);  // of passing queries, two tiles
  float* const passing_delta = passing_lse + 2 * kPassing;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / Shape::kColumnWarps * 16,
            column_block = warp % Shape::kColumnWarps * Shape::kSumCols / 16;
  const int length = args.q_len;
  // The longest passes come first: all queries see the first keys, and the last queries see all keys.
  const int first = static_cast<int>(kKeysKept ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kKept;
  const int valid = smaller(kKept, length - first);
  const int kept_head = static_cast<int>(blockIdx.y);
  const int64_t sequence = blockIdx.z;
  const int64_t key_row = sequence * args.k_capacity, query_row = sequence * args.q_len;
  const int64_t kept_row = (kKeysKept ? key_row : query_row) + first;
  const int first_row = kKeysKept ? first / kPassing * kPassing : 0, end_row = kKeysKept ? length : first + valid;
  const int steps = (end_row - first_row + kPassing - 1) / kPassing * (kKeysKept ? args.group : 1);

  const auto load_passing = [&](int at_row, int of_head, int stage) {
    const int64_t from = (kKeysKept ? query_row : key_row) + at_row;
    load_tile<kCols, kPassing, Shape::kThreads>(passing_a + stage * kTile, kKeysKept ? args.q : args.k, from,
                                                length - at_row, of_head, args.head_dim);
    load_tile<kCols, kPassing, Shape::kThreads>(passing_b + stage * kTile, kKeysKept ? args.dout : args.v, from,
                                                length - at_row, of_head, args.head_dim);
    if constexpr (kKeysKept) {  // rows beyond the end: zeros everywhere add nothing
      const int i = static_cast<int>(threadIdx.x);
      if (i < kPassing) {
        const bool inside = at_row + i < length;
        const int64_t at = (sequence * args.heads + of_head) * length + (inside ? at_row + i : 0);
        copy_4_async(passing_lse + stage * kPassing + i, args.lse + at, inside);
        copy_4_async(passing_delta + stage * kPassing + i, args.delta + at, inside);
      }
    }
  };

  load_tile<kCols, kKept, Shape::kThreads>(kept_a, kKeysKept ? args.k : args.q, kept_row, valid, kept_head,
                                           args.head_dim);
  load_tile<kCols, kKept, Shape::kThreads>(kept_b, kKeysKept ? args.v : args.dout, kept_row, valid, kept_head,
                                           args.head_dim);
  int next_row = first_row, next_head = kKeysKept ? kept_head * args.group : kept_head / args.group;  // next tile
  load_passing(next_row, next_head, 0);

  float row_lse[2] = {}, row_delta[2] = {};  // of queries kept; in units of log2
  if constexpr (!kKeysKept) {
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      if (row < valid) {
        const int64_t at = (sequence * args.heads + kept_head) * length + first + row;
        row_lse[half] = args.lse[at] * kLog2e;
        row_delta[half] = args.delta[at];
      }
    }
  }

  const BlockOffsets<kCols> left(warp_row, left_place(lane)), right(0, right_place(lane)), rows(0, left_place(lane));
  float sums_a[1][Shape::kSumCols / 8][4] = {};                  // dk or dq
  float sums_b[1][kKeysKept ? Shape::kSumCols / 8 : 2][4] = {};  // dv

  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2, row = next_row, head = next_head;
    next_row += kPassing;
    if (next_row >= end_row) {  // of this head
      next_row = first_row;
      ++next_head;
    }
    copies_wait();
    __syncthreads();  // this step's tiles have arrived, and no warp reads the previous ones
    if (step + 1 < steps) load_passing(next_row, next_head, 1 - stage);

    // Of this warp's rows and the tile's: `seen` if any query sees any key, `whole` if each sees all.
    const int kept_low = first + warp_row, kept_high = kept_low + 15, passing_high = row + kPassing - 1;
    const bool seen = kKeysKept ? kept_low <= passing_high : row <= kept_high;
    const bool whole = kKeysKept ? kept_high <= row : passing_high <= kept_low;
    if (!seen) continue;
    const bf16* const tile_a = passing_a + stage * kTile;
    const bf16* const tile_b = passing_b + stage * kTile;

    float p[1][kN][4] = {};
    multiply_rows<kCols>(p, kept_a, left, tile_a, right);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = 8 * j + lane % 4 * 2 + c % 2, kept = kept_low + lane / 4 + c / 2 * 8, passing = row + column;
        const float lse = kKeysKept ? passing_lse[stage * kPassing + column] * kLog2e : row_lse[c / 2];
        p[0][j][c] = fast_exp2(fmaf(p[0][j][c], args.scale_log2, -lse));
        if (!whole && (kKeysKept ? kept > passing : passing > kept)) p[0][j][c] = 0;
      }
    }
    uint32_t dropped[(4 * kN + 31) / 32] = {};  // one bit for each of this lane's elements
    if constexpr (kDropout) {
      const int query = kKeysKept ? row : kept_low, key = kKeysKept ? kept_low : row;
      const uint64_t index = dropout_index(args, static_cast<int>(sequence), kKeysKept ? head : kept_head, query);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        uint32_t draws[4];
        if constexpr (kKeysKept) {
          draws_of_key_rows(args, index + static_cast<uint64_t>(8 * j) * static_cast<uint64_t>(args.k_len), key, lane,
                            draws);
        } else {
          draws_of_query_rows(args, index, key + 8 * j, lane, draws);
        }
#pragma unroll
        for (int c = 0; c < 4; ++c)
          dropped[(4 * j + c) / 32] |= static_cast<uint32_t>(draws[c] < args.threshold) << ((4 * j + c) % 32);
      }
    }
    const auto factor_of = [&](int j, int c) {
      return (dropped[(4 * j + c) / 32] >> ((4 * j + c) % 32) & 1) != 0 ? 0.0f : args.keep_scale;
    };

    if constexpr (kKeysKept) {
      if constexpr (kDropout) {
        float kept_p[1][kN][4];
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) kept_p[0][j][c] = p[0][j][c] * factor_of(j, c);
        }
        add_weighted<kCols>(sums_b, as_weights(kept_p), tile_b, rows, column_block);
      } else {
        add_weighted<kCols>(sums_b, as_weights(p), tile_b, rows, column_block);
      }
    }
    float dp[1][kN][4] = {};
    multiply_rows<kCols>(dp, kept_b, left, tile_b, right);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = 8 * j + lane % 4 * 2 + c % 2;
        const float delta = kKeysKept ? passing_delta[stage * kPassing + column] : row_delta[c / 2];
        const float gradient = kDropout ? dp[0][j][c] * factor_of(j, c) : dp[0][j][c];
        dp[0][j][c] = p[0][j][c] * (gradient - delta);
      }
    }
    add_weighted<kCols>(sums_a, as_weights(dp), tile_a, rows, column_block);
  }

  __syncthreads();  // results are stored by way of the tiles kept
  const float scales[1][2] = {{args.scale, args.scale}};
  put_block<kCols>(kept_a, sums_a, scales, warp_row, column_block, lane);
  if constexpr (kKeysKept) {
    const float ones[1][2] = {{1, 1}};
    put_block<kCols>(kept_b, sums_b, ones, warp_row, column_block, lane);
  }
  __syncthreads();
  constexpr int kRowsPerWarp = kKept / Shape::kWarps;
  const int store_row = warp * kRowsPerWarp;
  store_rows<kCols, kRowsPerWarp>(kKeysKept ? args.dk : args.dq, kept_row + store_row, valid - store_row, kept_head,
                                  args.head_dim, kept_a, store_row, lane);
  if constexpr (kKeysKept)
    store_rows<kCols, kRowsPerWarp>(args.dv, kept_row + store_row, valid - store_row, kept_head, args.head_dim, kept_b,
                                    store_row, lane);
}

template <int kCols>
struct Backward {
  static int64_t shared_bytes() { return BackwardShape<kCols, false>::kSharedBytes; }
  template <bool kDropout>
  static void launch(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
    using Shape = BackwardShape<kCols, kDropout>;
    const unsigned tiles = blocks_for(args.q_len, Shape::kKept), sequences = static_cast<unsigned>(batch);
    const dim3 threads(Shape::kThreads);
    device::cuda::launch(stream,
                         {dim3(tiles, static_cast<unsigned>(args.kv_heads), sequences), threads, Shape::kSharedBytes},
                         attention_backward_kernel<kCols, true, kDropout>, args);
    device::cuda::launch(stream,
                         {dim3(tiles, static_cast<unsigned>(args.heads), sequences), threads, Shape::kSharedBytes},
                         attention_backward_kernel<kCols, false, kDropout>, args);
  }
};

}  // namespace

int64_t tensor_backward_shared_bytes(int64_t head_dim) {
  return with_columns<Backward>(head_dim, [](auto backward) { return backward.shared_bytes(); });
}
void tensor_backward(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
  with_columns<Backward>(args.head_dim, [&](auto backward) {
    if (args.threshold > 0) {
      backward.template launch<true>(stream, args, batch);
    } else {
      backward.template launch<false>(stream, args, batch);
    }
  });
}

}  // namespace trainer::ops::cuda
