// Attention backward in bf16 on tensor cores, from the log-sum-exp (Dao 2023). The kernel is launched for two passes.
// The first keeps a tile of keys and iterates over queries for dk and dv. The second keeps a tile of queries and
// iterates over keys for dq. Both compute scores and their gradients, which takes 7 GEMMs instead of 5. In return,
// every sum has one owner and a fixed order without atomics, and no partial sums of dq are written to memory: S/128 of
// them in f32 would be as large as an s×s matrix. The kept tiles are left operands, so that probabilities and score
// gradients become left operands of the second GEMMs within registers.
#include "ops/cuda/attention_dropout.cuh"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mask.cuh"
#include "ops/cuda/attention_tile.cuh"

namespace trainer::ops::cuda {
namespace {

/// A warp owns kBlocks·16 rows of the kept tiles. Two blocks halve the reads of the streamed tiles per GEMM, the
/// bottleneck of these kernels; their sums fit the registers if heads are narrow. With the widest heads, two warps
/// share rows, and each has half of the sums' columns. Streamed tiles are shorter if sums, scores and draws would not
/// fit the registers.
template <int kCols, bool kDropout>
struct BackwardShape {
  static constexpr bool kTall = kCols <= 64 && !kDropout;
  static constexpr int kWarps = kTall ? 4 : 8, kThreads = 32 * kWarps;
  static constexpr int kBlocks = kTall ? 2 : 1, kWarpRows = 16 * kBlocks;
  static constexpr int kColumnWarps = kCols <= 128 ? 1 : 2;
  /// Rows of a kept tile.
  static constexpr int kKept = kWarpRows * kWarps / kColumnWarps;
  /// Rows of a streamed tile; shared memory is double-buffered.
  static constexpr int kStreamed = kTall || kCols > (kDropout ? 64 : 128) ? 32 : 64;
  static constexpr int kSumCols = kCols / kColumnWarps;
  static constexpr int kSharedBytes = (2 * kKept + 4 * kStreamed) * kCols * static_cast<int>(sizeof(bf16)) +
                                      4 * kStreamed * static_cast<int>(sizeof(float));
  /// Resident blocks per multiprocessor.
  static constexpr int kResident = kTall ? 2 : 1;
  // Sizes for the shared memory of sm_80 (tall) or sm_90.
  static_assert(kResident * (kSharedBytes + 1024) <= (kTall ? 164 : 228) * 1024);
};

constexpr float kLog2e = 1.44269504088896340736f;

/// With kKeysKept, k and v are the kept tiles, and q and dout of all heads of the group the streamed tiles. Without it,
/// the roles are exchanged. kBounded: the first visible key of some rows is not 0 (attention_mask.cuh).
template <int kCols, bool kKeysKept, bool kDropout, bool kBounded>
__global__ void __launch_bounds__(BackwardShape<kCols, kDropout>::kThreads, BackwardShape<kCols, kDropout>::kResident)
    attention_backward_kernel(const AttentionArgs args) {
  using Shape = BackwardShape<kCols, kDropout>;
  constexpr int kBlocks = Shape::kBlocks, kWarpRows = Shape::kWarpRows;
  constexpr int kKept = Shape::kKept, kStreamed = Shape::kStreamed, kN = kStreamed / 8, kTile = kStreamed * kCols;
  bf16* const kept_a = dynamic_shared<bf16>();                                   // k or q
  bf16* const kept_b = kept_a + kKept * kCols;                                   // v or dout
  bf16* const streamed_a = kept_b + kKept * kCols;                               // q or k, two tiles
  bf16* const streamed_b = streamed_a + 2 * kTile;                               // dout or v
  float* const streamed_lse = reinterpret_cast<float*>(streamed_b + 2 * kTile);  // for streamed queries, two tiles
  float* const streamed_delta = streamed_lse + 2 * kStreamed;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / Shape::kColumnWarps * kWarpRows,
            column_block = warp % Shape::kColumnWarps * Shape::kSumCols / 16;
  const int length = args.q_len;
  // The longest passes come first: all queries attend to the first keys, and the last queries attend to all keys.
  const int first = static_cast<int>(kKeysKept ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kKept;
  const int valid = smaller(kKept, length - first);
  const int kept_head = static_cast<int>(blockIdx.y);
  const int64_t sequence = blockIdx.z;
  const int64_t key_row = sequence * args.k_capacity, query_row = sequence * args.q_len;
  const int64_t kept_row = (kKeysKept ? key_row : query_row) + first;
  const auto first_key_of = [&](int query) { return kBounded ? first_key(args, sequence, query) : 0; };
  const int first_row = (kKeysKept ? first : first_key_of(first)) / kStreamed * kStreamed;
  const int last_query = kKeysKept && kBounded ? queries_before(args, sequence, first + valid) : length;
  const int end_row = kKeysKept ? last_query : first + valid;
  const int steps = (end_row - first_row + kStreamed - 1) / kStreamed * (kKeysKept ? args.group : 1);

  const auto load_passing = [&](int at_row, int of_head, int stage) {
    const int64_t from = (kKeysKept ? query_row : key_row) + at_row;
    load_tile<kCols, kStreamed, Shape::kThreads>(streamed_a + stage * kTile, kKeysKept ? args.q : args.k, from,
                                                 length - at_row, of_head, args.head_dim);
    load_tile<kCols, kStreamed, Shape::kThreads>(streamed_b + stage * kTile, kKeysKept ? args.dout : args.v, from,
                                                 length - at_row, of_head, args.head_dim);
    if constexpr (kKeysKept) {  // zeros for rows beyond the end, which then do not contribute
      const int i = static_cast<int>(threadIdx.x);
      if (i < kStreamed) {
        const bool inside = at_row + i < length;
        const int64_t at = (sequence * args.heads + of_head) * length + (inside ? at_row + i : 0);
        copy_4_async(streamed_lse + stage * kStreamed + i, args.lse + at, inside);
        copy_4_async(streamed_delta + stage * kStreamed + i, args.delta + at, inside);
      }
    }
  };

  load_tile<kCols, kKept, Shape::kThreads>(kept_a, kKeysKept ? args.k : args.q, kept_row, valid, kept_head,
                                           args.head_dim);
  load_tile<kCols, kKept, Shape::kThreads>(kept_b, kKeysKept ? args.v : args.dout, kept_row, valid, kept_head,
                                           args.head_dim);
  int row = first_row,
      head = kKeysKept ? kept_head * args.group : kept_head / args.group;  // row and head of the streamed tile
  const auto advance = [&](int& to_row, int& to_head) {
    to_row += kStreamed;
    if (to_row >= end_row) {  // the end of this head
      to_row = first_row;
      ++to_head;
    }
  };
  load_passing(row, head, 0);

  float row_lse[kBlocks][2] = {}, row_delta[kBlocks][2] = {};  // for kept queries; row_lse in units of log 2
  if constexpr (!kKeysKept) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int kept = warp_row + 16 * i + lane / 4 + 8 * half;
        if (kept < valid) {
          const int64_t at = (sequence * args.heads + kept_head) * length + first + kept;
          row_lse[i][half] = args.lse[at] * kLog2e;
          row_delta[i][half] = args.delta[at];
        }
      }
    }
  }

  const BlockOffsets<kCols> left(warp_row, block_place(lane)), rows(0, block_place(lane));
  float sums_a[kBlocks][Shape::kSumCols / 8][4] = {};                  // dk or dq
  float sums_b[kBlocks][kKeysKept ? Shape::kSumCols / 8 : 2][4] = {};  // dv

#pragma unroll 1
  for (int step = 0; step < steps; ++step, advance(row, head)) {
    const int stage = step % 2;
    copies_wait();
    __syncthreads();  // this step's tiles have arrived, and no warp still reads the previous ones
    if (step + 1 < steps) {
      int next_row = row, next_head = head;
      advance(next_row, next_head);
      load_passing(next_row, next_head, 1 - stage);
    }

    // Visibility for this warp's rows: `seen` if any query sees any key, `whole` if every query sees all keys.
    const int kept_low = first + warp_row, kept_high = kept_low + kWarpRows - 1, streamed_high = row + kStreamed - 1;
    bool seen = kKeysKept ? kept_low <= streamed_high : row <= kept_high;
    bool whole = kKeysKept ? kept_high <= row : streamed_high <= kept_low;
    if constexpr (kBounded) {
      seen = seen && first_key_of(kKeysKept ? row : kept_low) <= (kKeysKept ? kept_high : streamed_high);
      whole = whole && first_key_of(kKeysKept ? streamed_high : kept_high) <= (kKeysKept ? kept_low : row);
    }
    if (!seen) continue;
    const bf16* const tile_a = streamed_a + stage * kTile;
    const bf16* const tile_b = streamed_b + stage * kTile;

    float p[kBlocks][kN][4] = {};
    multiply_rows<kCols>(p, kept_a, left, tile_a, rows);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int column = 8 * j + lane % 4 * 2 + c % 2;
          const float lse = kKeysKept ? streamed_lse[stage * kStreamed + column] * kLog2e : row_lse[i][c / 2];
          p[i][j][c] = fast_exp2(fmaf(p[i][j][c], args.scale_log2, -lse));
        }
      }
    }
    if (!whole) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int passing = row + 8 * j + lane % 4 * 2 + c % 2, kept = kept_low + 16 * i + lane / 4 + c / 2 * 8;
            if (kKeysKept ? kept > passing : passing > kept) p[i][j][c] = 0;
            if constexpr (kBounded) {
              if ((kKeysKept ? kept : passing) < first_key_of(kKeysKept ? passing : kept)) p[i][j][c] = 0;
            }
          }
        }
      }
    }
    uint32_t dropped[(4 * kBlocks * kN + 31) / 32] = {};  // one bit for each of this lane's elements
    if constexpr (kDropout) {
      const int query = kKeysKept ? row : kept_low, key = kKeysKept ? kept_low : row;
      const uint64_t index = dropout_index(args, static_cast<int>(sequence), kKeysKept ? head : kept_head, query);
      const auto line = [&](int queries) {
        return index + static_cast<uint64_t>(queries) * static_cast<uint64_t>(args.k_len);
      };
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          uint32_t draws[4];
          if constexpr (kKeysKept) {
            draws_of_key_rows(args, line(8 * j), key + 16 * i, lane, draws);
          } else {
            draws_of_query_rows(args, line(16 * i), key + 8 * j, lane, draws);
          }
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int bit = 4 * (i * kN + j) + c;
            dropped[bit / 32] |= static_cast<uint32_t>(draws[c] < args.threshold) << (bit % 32);
          }
        }
      }
    }
    const auto factor_of = [&](int i, int j, int c) {
      const int bit = 4 * (i * kN + j) + c;
      return (dropped[bit / 32] >> (bit % 32) & 1) != 0 ? 0.0f : args.keep_scale;
    };
    const auto delta_of = [&](int i, int j, int c) {
      return kKeysKept ? streamed_delta[stage * kStreamed + 8 * j + lane % 4 * 2 + c % 2] : row_delta[i][c / 2];
    };

    if constexpr (kKeysKept) {
      if constexpr (kDropout) {
        float kept_p[kBlocks][kN][4];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < kN; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c) kept_p[i][j][c] = p[i][j][c] * factor_of(i, j, c);
          }
        }
        add_weighted<kCols>(sums_b, as_weights(kept_p), tile_b, rows, column_block);
      } else {
        add_weighted<kCols>(sums_b, as_weights(p), tile_b, rows, column_block);
      }
    }
    // Without dropout, the sums start at −delta.
    float dp[kBlocks][kN][4];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) dp[i][j][c] = kDropout ? 0.0f : -delta_of(i, j, c);
      }
    }
    multiply_rows<kCols>(dp, kept_b, left, tile_b, rows);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          dp[i][j][c] =
              p[i][j][c] * (kDropout ? fmaf(dp[i][j][c], factor_of(i, j, c), -delta_of(i, j, c)) : dp[i][j][c]);
      }
    }
    add_weighted<kCols>(sums_a, as_weights(dp), tile_a, rows, column_block);
  }

  __syncthreads();  // no warp still reads the kept tiles, in which results are now staged
  float scales[kBlocks][2], ones[kBlocks][2];
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    scales[i][0] = scales[i][1] = args.scale;
    ones[i][0] = ones[i][1] = 1;
  }
  put_block<kCols>(kept_a, sums_a, scales, warp_row, column_block, lane);
  if constexpr (kKeysKept) put_block<kCols>(kept_b, sums_b, ones, warp_row, column_block, lane);
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
  template <bool kKeysKept, bool kDropout, bool kBounded>
  static void launch_pass(cudaStream_t stream, const AttentionArgs& args, int64_t heads, int64_t batch) {
    using Shape = BackwardShape<kCols, kDropout>;
    const dim3 blocks(blocks_for(args.q_len, Shape::kKept), static_cast<unsigned>(heads), static_cast<unsigned>(batch));
    device::cuda::launch(stream, {blocks, dim3(Shape::kThreads), Shape::kSharedBytes},
                         attention_backward_kernel<kCols, kKeysKept, kDropout, kBounded>, args);
  }
  template <bool kDropout, bool kBounded>
  static void launch(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
    launch_pass<true, kDropout, kBounded>(stream, args, args.kv_heads, batch);
    launch_pass<false, kDropout, kBounded>(stream, args, args.heads, batch);
  }
};

}  // namespace

int64_t tensor_backward_shared_bytes(int64_t head_dim) {
  return with_columns<Backward>(head_dim, [](auto backward) { return backward.shared_bytes(); });
}
void tensor_backward(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
  with_columns<Backward>(args.head_dim, [&](auto backward) {
    with_features(
        args, [&](auto dropout, auto bounded) { backward.template launch<dropout(), bounded()>(stream, args, batch); });
  });
}

}  // namespace trainer::ops::cuda
