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
  __device__ __forceinline__ RowState() {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      top[i][0] = top[i][1] = -INFINITY;
      sum[i][0] = sum[i][1] = 0;
    }
  }
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

/// A thread of a block: its place and its tiles in shared memory. Fragments are arguments: as members, more of them
/// would be spilled. kBounded: the first visible key of some rows is not 0 (attention_mask.cuh).
template <int kCols, bool kDropout, bool kBounded>
struct ForwardTile {
  using Shape = ForwardShape<kCols, kDropout>;
  static constexpr int kBlocks = Shape::kBlocks, kWarpRows = Shape::kWarpRows, kRows = Shape::kRows;
  static constexpr int kKeys = Shape::kKeys, kN = kKeys / 8;
  using Scores = float[kBlocks][kN][4];
  using Sums = float[kBlocks][kCols / 8][4];

  const AttentionArgs& args;
  bf16* const q_tile = dynamic_shared<bf16>();
  bf16* const k_tile = q_tile + kRows * kCols;
  bf16* const v_tile = k_tile + kKeys * kCols;

  // The longest rows come first, so that the last blocks are short. Adjacent blocks share keys in L2.
  const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / args.group;
  const int64_t sequence = blockIdx.z;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  const int position = args.shift + query;  // the last key that the tile's row 0 may see
  const int64_t query_row = sequence * args.q_len + query, key_row = sequence * args.k_capacity;
  const int queries = smaller(kRows, args.q_len - query);
  // Without any key for these rows, the first tile is not below `tiles`.
  const int tiles = (smaller(position + queries, args.k_len) + kKeys - 1) / kKeys;
  const int first_tile = first_key_of(0) / kKeys;
  const int warp_first = first_key_of(warp_row), warp_all = first_key_of(warp_row + kWarpRows - 1);
  const uint64_t warp_index =
      kDropout ? dropout_index(args, static_cast<int>(sequence), head, query + warp_row) : uint64_t{0};

  const BlockOffsets<kCols> left{warp_row, block_place(lane)}, rows{0, block_place(lane)};

  __device__ __forceinline__ int first_key_of(int row) const {
    return kBounded ? first_key(args, sequence, query + row) : 0;
  }
  /// Returns true if a row of this warp sees any of the keys from `key`.
  __device__ __forceinline__ bool sees(int key) const {
    return key < position + warp_row + kWarpRows && (!kBounded || key + kKeys > warp_first);
  }

  __device__ __forceinline__ void load_queries() const {
    load_tile<kCols, kRows, Shape::kThreads>(q_tile, args.q, query_row, queries, head, args.head_dim);
  }
  __device__ __forceinline__ void load_keys(bf16* tile, const AttentionRows& x, int key) const {
    load_tile<kCols, kKeys, Shape::kThreads>(tile, x, key_row + key, args.k_len - key, kv_head, args.head_dim);
  }

  /// Sets scores, which are zero, to those of the keys from `key`: −∞ if they are not visible.
  __device__ __forceinline__ void set_scores(Scores& scores, int key) const {
    multiply_rows<kCols>(scores, q_tile, left, k_tile, rows);
    if (key + kKeys - 1 > smaller(position + warp_row, args.k_len - 1)) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int row = warp_row + 16 * i + lane / 4 + c / 2 * 8, column = 8 * j + lane % 4 * 2 + c % 2;
            if (key + column > smaller(position + row, args.k_len - 1)) scores[i][j][c] = -INFINITY;
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
          for (int j = 0; j < kN; ++j) {
#pragma unroll
            for (int c = 2 * half; c < 2 * half + 2; ++c)
              if (8 * j + lane % 4 * 2 + c % 2 < hidden) scores[i][j][c] = -INFINITY;
          }
        }
      }
    }
  }

  /// Sets dropped probabilities of the keys from `key` to zero.
  __device__ __forceinline__ void drop(Scores& scores, int key) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        uint32_t draws[4];
        draws_of_query_rows(args, warp_index + static_cast<uint64_t>(16 * i) * static_cast<uint64_t>(args.length),
                            key + 8 * j, lane, draws);
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (draws[c] < args.threshold) scores[i][j][c] = 0;
      }
    }
  }

  __device__ __forceinline__ void add_values(Sums& out, const float (&shrink)[kBlocks][2],
                                             const Scores& probabilities) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) out[i][j][c] *= shrink[i][c / 2];
      }
    }
    add_weighted<kCols>(out, as_weights(probabilities), v_tile, rows);
  }

  /// Writes the results, staged in the warp's own rows of the query tile, so that rows are written in whole chunks.
  __device__ __forceinline__ void store(const Sums& out, const RowState<kBlocks>& state) const {
    float factors[kBlocks][2];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = state.sum[i][half];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        factors[i][half] = sum == 0 ? 0 : args.keep_scale / sum;  // 0: no key visible
        const int row = query + warp_row + 16 * i + 8 * half + lane / 4;
        if (args.lse != nullptr && lane % 4 == 0 && row < args.q_len)
          args.lse[(sequence * args.heads + head) * args.q_len + row] = state.top[i][half] * args.scale + logf(sum);
      }
    }
    put_block<kCols>(q_tile, out, factors, warp_row, 0, lane);
    sync_warp();
    store_rows<kCols, kWarpRows>(args.out, query_row + warp_row, queries - warp_row, head, args.head_dim, q_tile,
                                 warp_row, lane);
  }
};

template <int kCols, bool kDropout, bool kBounded>
__global__ void __launch_bounds__(ForwardShape<kCols, kDropout>::kThreads, ForwardShape<kCols, kDropout>::kResident)
    attention_forward_kernel(const AttentionArgs args) {
  using Tile = ForwardTile<kCols, kDropout, kBounded>;
  const Tile tile{args};
  if (tile.first_tile < tile.tiles) {
    tile.load_queries();
    tile.load_keys(tile.k_tile, args.k, (tile.tiles - 1) * Tile::kKeys);
  }
  typename Tile::Sums out = {};
  RowState<Tile::kBlocks> state;
  for (int at = tile.tiles - 1; at >= tile.first_tile; --at) {  // tiles with the rows' own positions come first
    const int key = at * Tile::kKeys;
    const bool seen = tile.sees(key);
    copies_wait();
    __syncthreads();  // keys have arrived, and no warp still reads the previous values
    tile.load_keys(tile.v_tile, args.v, key);
    typename Tile::Scores scores = {};
    float shrink[Tile::kBlocks][2];
    if (seen) {
      tile.set_scores(scores, key);
      softmax_step(scores, state, args.scale_log2, shrink);
      if constexpr (kDropout) tile.drop(scores, key);
    }
    copies_wait();
    __syncthreads();  // values have arrived, and no warp still reads the keys
    if (at > tile.first_tile) tile.load_keys(tile.k_tile, args.k, key - Tile::kKeys);
    if (seen) tile.add_values(out, shrink, scores);
  }
  tile.store(out, state);
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
