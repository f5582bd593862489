// Attention forward in bf16 on tensor cores, after FlashAttention-2 (Dao 2023). A block keeps a tile of queries and
// iterates over the keys visible to it; scores never leave registers. The tile of values is loaded while queries are
// multiplied with keys, and the next tile of keys while probabilities are multiplied with values. One buffer each is
// therefore enough, and several blocks fit on a multiprocessor.
#include "ops/cuda/attention_dropout.cuh"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mask.cuh"
#include "ops/cuda/attention_tile.cuh"

namespace trainer::ops::cuda {
namespace {

/// Each warp owns kBlocks·16 rows of queries. Two blocks halve what a warp reads of keys and values per GEMM. Tiles of
/// keys are shorter if sums, scores and draws would not fit the registers, and for heads of 64 columns, so that three
/// thread blocks fit on a multiprocessor.
template <int kCols, bool kDropout>
struct ForwardShape {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kBlocks = kCols <= 128 ? 2 : 1;
  static constexpr int kWarpRows = 16 * kBlocks, kRows = kWarps * kWarpRows;
  static constexpr int kKeys = kDropout && (kCols == 96 || kCols == 128) ? 32 : !kDropout && kCols == 64 ? 48 : 64;
  static constexpr int kSharedBytes = (kRows + 2 * kKeys) * kCols * static_cast<int>(sizeof(bf16));
  static constexpr int kResident = kCols <= 64 && !kDropout ? 3 : 1;
  static_assert(kResident * (kSharedBytes + 1024) <= 164 * 1024);  // shared memory of sm_80
};

/// A row's largest score so far, and the sum of the row's probabilities relative to that score; [block][upper, lower
/// half].
template <int kBlocks>
struct RowState {
  float top[kBlocks][2], sum[kBlocks][2];
};

/// Turns scores into probabilities relative to the row's maximum. shrink: the factor by which earlier sums shrink.
/// Until the end, a lane sums only its own columns, since all four lanes of a row have the same factor.
template <int kBlocks, int kN>
__device__ __forceinline__ void softmax_step(float (&scores)[kBlocks][kN][4], RowState<kBlocks>& rows, float scale_log2,
                                             float (&shrink)[kBlocks][2]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = rows.top[i][half];
#pragma unroll
      for (int j = 0; j < kN; ++j) top = fmaxf(top, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
      top = fmaxf(top, shuffle_xor(top, 1));
      top = fmaxf(top, shuffle_xor(top, 2));
      const float shift = top == -INFINITY ? 0.0f : top * scale_log2;  // no key visible yet: everything stays 0
      shrink[i][half] = fast_exp2(fmaf(rows.top[i][half], scale_log2, -shift));
      rows.top[i][half] = top;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[i][j][c] = fast_exp2(fmaf(scores[i][j][c], scale_log2, -shift));
          sum += scores[i][j][c];
        }
      }
      rows.sum[i][half] = fmaf(rows.sum[i][half], shrink[i][half], sum);
    }
  }
}

/// kBounded: the first visible key of some rows is not 0 (attention_mask.cuh).
template <int kCols, bool kDropout, bool kBounded>
__global__ void __launch_bounds__(ForwardShape<kCols, kDropout>::kThreads, ForwardShape<kCols, kDropout>::kResident)
    attention_forward_kernel(const AttentionArgs args) {
  using Shape = ForwardShape<kCols, kDropout>;
  constexpr int kBlocks = Shape::kBlocks, kScoreTiles = Shape::kKeys / 8;
  bf16* const q_tile = dynamic_shared<bf16>();
  bf16* const k_tile = q_tile + Shape::kRows * kCols;
  bf16* const v_tile = k_tile + Shape::kKeys * kCols;

  // The longest rows come first, so that the last blocks are short. Adjacent blocks share keys in L2.
  const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / args.group;
  const int64_t sequence = blockIdx.z;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * Shape::kWarpRows;
  const int position = args.k_len - args.q_len + query;  // position of the tile's row 0
  const int64_t query_row = sequence * args.q_len + query, key_row = sequence * args.k_capacity;
  const int queries = smaller(Shape::kRows, args.q_len - query);
  const int tiles = (position + queries + Shape::kKeys - 1) / Shape::kKeys;
  const auto first_key_of = [&](int row) { return kBounded ? first_key(args, sequence, query + row) : 0; };
  const int first_tile = first_key_of(0) / Shape::kKeys;
  const int warp_first = first_key_of(warp_row), warp_all = first_key_of(warp_row + Shape::kWarpRows - 1);

  const auto load_keys = [&](bf16* tile, const AttentionRows& x, int key) {
    load_tile<kCols, Shape::kKeys, Shape::kThreads>(tile, x, key_row + key, args.k_len - key, kv_head, args.head_dim);
  };
  load_tile<kCols, Shape::kRows, Shape::kThreads>(q_tile, args.q, query_row, queries, head, args.head_dim);
  load_keys(k_tile, args.k, (tiles - 1) * Shape::kKeys);

  const BlockOffsets<kCols> left(warp_row, block_place(lane)), rows(0, block_place(lane));
  float out[kBlocks][kCols / 8][4] = {};
  RowState<kBlocks> state;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    for (int half = 0; half < 2; ++half) {
      state.top[i][half] = -INFINITY;
      state.sum[i][half] = 0;
    }
  }
  const uint64_t warp_index =
      kDropout ? dropout_index(args, static_cast<int>(sequence), head, position + warp_row) : uint64_t{0};

  for (int tile = tiles - 1; tile >= first_tile; --tile) {  // tiles with the rows' own positions come first
    const int key = tile * Shape::kKeys;
    // Visible to a row of this warp.
    const bool seen = key < position + warp_row + Shape::kWarpRows && (!kBounded || key + Shape::kKeys > warp_first);
    copies_wait();
    __syncthreads();  // keys have arrived, and no warp still reads the previous values
    load_keys(v_tile, args.v, key);

    float scores[kBlocks][kScoreTiles][4] = {};
    float shrink[kBlocks][2];
    if (seen) {
      multiply_rows<kCols>(scores, q_tile, left, k_tile, rows);
      if (key + Shape::kKeys - 1 > position + warp_row) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < kScoreTiles; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              const int row = warp_row + 16 * i + lane / 4 + c / 2 * 8, column = 8 * j + lane % 4 * 2 + c % 2;
              if (key + column > position + row) scores[i][j][c] = -INFINITY;
            }
          }
        }
      }
      if (kBounded && key < warp_all) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int hidden = first_key_of(warp_row + 16 * i + 8 * half + lane / 4) - key;
#pragma unroll
            for (int j = 0; j < kScoreTiles; ++j) {
#pragma unroll
              for (int c = 2 * half; c < 2 * half + 2; ++c)
                if (8 * j + lane % 4 * 2 + c % 2 < hidden) scores[i][j][c] = -INFINITY;
            }
          }
        }
      }
      softmax_step(scores, state, args.scale_log2, shrink);
      if constexpr (kDropout) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < kScoreTiles; ++j) {
            uint32_t draws[4];
            draws_of_query_rows(args, warp_index + static_cast<uint64_t>(16 * i) * static_cast<uint64_t>(args.k_len),
                                key + 8 * j, lane, draws);
#pragma unroll
            for (int c = 0; c < 4; ++c)
              if (draws[c] < args.threshold) scores[i][j][c] = 0;
          }
        }
      }
    }
    copies_wait();
    __syncthreads();  // values have arrived, and no warp still reads the keys
    if (tile > first_tile) load_keys(k_tile, args.k, key - Shape::kKeys);
    if (seen) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kCols / 8; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) out[i][j][c] *= shrink[i][c / 2];
        }
      }
      add_weighted<kCols>(out, as_weights(scores), v_tile, rows);
    }
  }

  float factors[kBlocks][2];
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[i][half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      factors[i][half] = args.keep_scale / sum;
      const int row = query + warp_row + 16 * i + 8 * half + lane / 4;
      if (args.lse != nullptr && lane % 4 == 0 && row < args.q_len)
        args.lse[(sequence * args.heads + head) * args.q_len + row] = state.top[i][half] * args.scale + logf(sum);
    }
  }
  // Results are staged in the warp's own rows of the query tile, so that rows are written in whole chunks.
  put_block<kCols>(q_tile, out, factors, warp_row, 0, lane);
  sync_warp();
  store_rows<kCols, Shape::kWarpRows>(args.out, query_row + warp_row, queries - warp_row, head, args.head_dim, q_tile,
                                      warp_row, lane);
}

template <int kCols>
struct Forward {
  static int64_t shared_bytes() { return ForwardShape<kCols, false>::kSharedBytes; }
  template <bool kDropout, bool kBounded>
  static void launch(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
    using Shape = ForwardShape<kCols, kDropout>;
    const dim3 blocks(blocks_for(args.q_len, Shape::kRows), static_cast<unsigned>(args.heads),
                      static_cast<unsigned>(batch));
    device::cuda::launch(stream, {blocks, dim3(Shape::kThreads), Shape::kSharedBytes},
                         attention_forward_kernel<kCols, kDropout, kBounded>, args);
  }
};

}  // namespace

int64_t tensor_forward_shared_bytes(int64_t head_dim) {
  return with_columns<Forward>(head_dim, [](auto forward) { return forward.shared_bytes(); });
}
void tensor_forward(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
  with_columns<Forward>(args.head_dim, [&](auto forward) {
    with_features(
        args, [&](auto dropout, auto bounded) { forward.template launch<dropout(), bounded()>(stream, args, batch); });
  });
}

}  // namespace trainer::ops::cuda
