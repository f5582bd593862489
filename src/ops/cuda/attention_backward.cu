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

/// The log-sum-exp, in units of log 2, and delta of the rows of kept queries, in the layout of sums.
template <int kBlocks>
struct RowStatistics {
  float lse[kBlocks][2] = {}, delta[kBlocks][2] = {};
};

/// A streamed tile: its first row, its head, which of the two buffers it is in, and its operands there.
struct Streamed {
  int row, head, stage;
  const bf16 *a = nullptr, *b = nullptr;  // q and dout, or k and v
};

/// A lane's offsets in left operands, the kept rows of its warp, and in right operands, streamed rows.
template <int kCols>
struct LaneOffsets {
  BlockOffsets<kCols> left, rows;
};

/// A thread of a pass: its place and its tiles in shared memory. Fragments and offsets are arguments: as members,
/// more of them would be spilled. With kKeysKept, k and v are the kept tiles, and q and dout of all heads of the group
/// the streamed tiles. Without it, the roles are exchanged. kBounded: the first visible key of some rows is not 0
/// (attention_mask.cuh).
template <int kCols, bool kKeysKept, bool kDropout, bool kBounded>
struct BackwardPass {
  using Shape = BackwardShape<kCols, kDropout>;
  static constexpr int kBlocks = Shape::kBlocks, kWarpRows = Shape::kWarpRows, kThreads = Shape::kThreads;
  static constexpr int kKept = Shape::kKept, kStreamed = Shape::kStreamed, kN = kStreamed / 8;
  static constexpr int kTile = kStreamed * kCols;
  using Scores = float[kBlocks][kN][4];
  using Sums = float[kBlocks][Shape::kSumCols / 8][4];
  using Dropped = uint32_t[(4 * kBlocks * kN + 31) / 32];  // one bit for each of a lane's scores

  const AttentionArgs& args;
  bf16* const kept_a = dynamic_shared<bf16>();                                   // k or q
  bf16* const kept_b = kept_a + kKept * kCols;                                   // v or dout
  bf16* const streamed_a = kept_b + kKept * kCols;                               // q or k, two tiles
  bf16* const streamed_b = streamed_a + 2 * kTile;                               // dout or v
  float* const streamed_lse = reinterpret_cast<float*>(streamed_b + 2 * kTile);  // for streamed queries, two tiles
  float* const streamed_delta = streamed_lse + 2 * kStreamed;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / Shape::kColumnWarps * kWarpRows;
  const int column_block = warp % Shape::kColumnWarps * Shape::kSumCols / 16;
  const int kept_length = kKeysKept ? args.k_len : args.q_len, streamed_length = kKeysKept ? args.q_len : args.k_len;
  // The longest passes come first: all queries attend to the first keys, and the last queries attend to all keys.
  const int first = static_cast<int>(kKeysKept ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kKept;
  const int valid = smaller(kKept, kept_length - first);
  /// The streamed row at the position of kept row 0; perhaps there is none.
  __device__ __forceinline__ int place() const { return kKeysKept ? first - args.shift : first + args.shift; }
  const int kept_head = static_cast<int>(blockIdx.y);
  const int64_t sequence = blockIdx.z;
  const int64_t key_row = sequence * args.k_capacity, query_row = sequence * args.q_len;
  const int64_t kept_row = (kKeysKept ? key_row : query_row) + first;
  const int first_row = (kKeysKept ? larger(0, place()) : first_key_of(first)) / kStreamed * kStreamed;
  const int last_query = kKeysKept && kBounded ? queries_before(args, sequence, first + valid) : args.q_len;
  const int end_row = kKeysKept ? last_query : smaller(place() + valid, args.k_len);
  const int steps = (end_row - first_row + kStreamed - 1) / kStreamed * (kKeysKept ? args.group : 1);

  __device__ __forceinline__ int first_key_of(int query) const {
    return kBounded ? first_key(args, sequence, query) : 0;
  }
  /// Returns the last key seen by a kept query, whose own key would be `key`. With kept keys, those beyond the last one
  /// need no bound, since they are not written.
  __device__ __forceinline__ int last_key(int key) const { return smaller(key, args.k_len - 1); }
  /// Return the row of the streamed tile and the row of the warp's kept rows to which an element of Scores belongs.
  __device__ __forceinline__ int streamed_of(int j, int c) const { return 8 * j + lane % 4 * 2 + c % 2; }
  __device__ __forceinline__ int kept_of(int i, int c) const { return 16 * i + lane / 4 + c / 2 * 8; }
  __device__ __forceinline__ float factor_of(const Dropped& dropped, int i, int j, int c) const {
    const int bit = 4 * (i * kN + j) + c;
    return (dropped[bit / 32] >> (bit % 32) & 1) != 0 ? 0.0f : args.keep_scale;
  }
  __device__ __forceinline__ float delta_of(const RowStatistics<kBlocks>& kept, Streamed at, int i, int j,
                                            int c) const {
    return kKeysKept ? streamed_delta[at.stage * kStreamed + streamed_of(j, c)] : kept.delta[i][c / 2];
  }

  __device__ __forceinline__ void load_kept() const {
    load_tile<kCols, kKept, kThreads>(kept_a, kKeysKept ? args.k : args.q, kept_row, valid, kept_head, args.head_dim);
    load_tile<kCols, kKept, kThreads>(kept_b, kKeysKept ? args.v : args.dout, kept_row, valid, kept_head,
                                      args.head_dim);
  }
  __device__ __forceinline__ void load_statistics(RowStatistics<kBlocks>& kept_rows) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int kept = warp_row + 16 * i + lane / 4 + 8 * half;
        if (kept < valid) {
          const int64_t at = (sequence * args.heads + kept_head) * args.q_len + first + kept;
          kept_rows.lse[i][half] = args.lse[at] * kLog2e;
          kept_rows.delta[i][half] = args.delta[at];
        }
      }
    }
  }
  __device__ __forceinline__ void load_streamed(Streamed to) const {
    const int64_t from = (kKeysKept ? query_row : key_row) + to.row;
    load_tile<kCols, kStreamed, kThreads>(streamed_a + to.stage * kTile, kKeysKept ? args.q : args.k, from,
                                          streamed_length - to.row, to.head, args.head_dim);
    load_tile<kCols, kStreamed, kThreads>(streamed_b + to.stage * kTile, kKeysKept ? args.dout : args.v, from,
                                          streamed_length - to.row, to.head, args.head_dim);
    if constexpr (kKeysKept) {  // zeros for rows beyond the end, which then do not contribute
      const int i = static_cast<int>(threadIdx.x);
      if (i < kStreamed) {
        const bool inside = to.row + i < args.q_len;
        const int64_t at = (sequence * args.heads + to.head) * args.q_len + (inside ? to.row + i : 0);
        copy_4_async(streamed_lse + to.stage * kStreamed + i, args.lse + at, inside);
        copy_4_async(streamed_delta + to.stage * kStreamed + i, args.delta + at, inside);
      }
    }
  }
  __device__ __forceinline__ void advance(Streamed& at) const {
    at.row += kStreamed;
    if (at.row >= end_row) {  // the end of this head
      at.row = first_row;
      ++at.head;
    }
  }

  /// Visibility for the warp's rows: `seen` if any query sees any key, `whole` if every query sees all keys.
  struct Visibility {
    bool seen, whole;
  };
  __device__ __forceinline__ Visibility visibility(int row) const {
    const int kept_low = place() + warp_row, kept_high = kept_low + kWarpRows - 1, streamed_high = row + kStreamed - 1;
    bool seen = kKeysKept ? kept_low <= streamed_high : row <= kept_high;
    bool whole = kKeysKept ? kept_high <= row : streamed_high <= last_key(kept_low);
    if constexpr (kBounded) {
      seen = seen && (kKeysKept ? first_key_of(row) - args.shift <= kept_high
                                : first_key_of(kept_low - args.shift) <= streamed_high);
      whole = whole && (kKeysKept ? first_key_of(streamed_high) - args.shift <= kept_low
                                  : first_key_of(kept_high - args.shift) <= row);
    }
    return {seen, whole};
  }

  /// Sets p, which is zero, to the probabilities of the streamed tile, without dropout.
  __device__ __forceinline__ void set_probabilities(Scores& p, const RowStatistics<kBlocks>& kept_rows,
                                                    const LaneOffsets<kCols>& lanes, Streamed at, bool whole) const {
    multiply_rows<kCols>(p, kept_a, lanes.left, at.a, lanes.rows);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float lse =
              kKeysKept ? streamed_lse[at.stage * kStreamed + streamed_of(j, c)] * kLog2e : kept_rows.lse[i][c / 2];
          p[i][j][c] = fast_exp2(fmaf(p[i][j][c], args.scale_log2, -lse));
        }
      }
    }
    if (whole) return;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int passing = at.row + streamed_of(j, c), kept = place() + warp_row + kept_of(i, c);
          if (kKeysKept ? kept > passing : passing > last_key(kept)) p[i][j][c] = 0;
          if constexpr (kBounded) {
            if (kKeysKept ? kept < first_key_of(passing) - args.shift : passing < first_key_of(kept - args.shift))
              p[i][j][c] = 0;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void draw(Dropped& dropped, Streamed at) const {
    const int kept_low = first + warp_row, query = kKeysKept ? at.row : kept_low, key = kKeysKept ? kept_low : at.row;
    const uint64_t index = dropout_index(args, static_cast<int>(sequence), kKeysKept ? at.head : kept_head, query);
    const auto line = [&](int queries) {
      return index + static_cast<uint64_t>(queries) * static_cast<uint64_t>(args.length);
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

  /// Adds the tile's share of dv, from its probabilities.
  __device__ __forceinline__ void add_to_dv(Sums& dv, const Scores& p, const Dropped& dropped,
                                            const LaneOffsets<kCols>& lanes, Streamed at) const {
    if constexpr (kDropout) {
      Scores kept_p;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) kept_p[i][j][c] = p[i][j][c] * factor_of(dropped, i, j, c);
        }
      }
      add_weighted<kCols>(dv, as_weights(kept_p), at.b, lanes.rows, column_block);
    } else {
      add_weighted<kCols>(dv, as_weights(p), at.b, lanes.rows, column_block);
    }
  }

  /// Adds the tile's share of dk or dq, from the gradients of its scores.
  __device__ __forceinline__ void add_score_gradients(Sums& sums, const Scores& p, const Dropped& dropped,
                                                      const RowStatistics<kBlocks>& kept_rows,
                                                      const LaneOffsets<kCols>& lanes, Streamed at) const {
    Scores dp;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          dp[i][j][c] = kDropout ? 0.0f : -delta_of(kept_rows, at, i, j, c);  // added below with dropout
      }
    }
    multiply_rows<kCols>(dp, kept_b, lanes.left, at.b, lanes.rows);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          dp[i][j][c] =
              p[i][j][c] * (kDropout ? fmaf(dp[i][j][c], factor_of(dropped, i, j, c), -delta_of(kept_rows, at, i, j, c))
                                     : dp[i][j][c]);
      }
    }
    add_weighted<kCols>(sums, as_weights(dp), at.a, lanes.rows, column_block);
  }

  /// Adds the results to those in memory, or stages them in the memory of the kept tiles, which no warp reads any more,
  /// and writes them.
  __device__ __forceinline__ void store(const Sums& sums, const Sums& dv) const {
    if ((kKeysKept ? args.dk : args.dq).adds) {
      const int64_t row = kept_row + warp_row;
      add_block(kKeysKept ? args.dk : args.dq, row, valid - warp_row, kept_head, args.head_dim, sums, args.scale,
                16 * column_block, lane);
      if constexpr (kKeysKept)
        add_block(args.dv, row, valid - warp_row, kept_head, args.head_dim, dv, 1, 16 * column_block, lane);
      return;
    }
    float scales[kBlocks][2], ones[kBlocks][2];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      scales[i][0] = scales[i][1] = args.scale;
      ones[i][0] = ones[i][1] = 1;
    }
    put_block<kCols>(kept_a, sums, scales, warp_row, column_block, lane);
    if constexpr (kKeysKept) put_block<kCols>(kept_b, dv, ones, warp_row, column_block, lane);
    __syncthreads();
    constexpr int kRowsPerWarp = kKept / Shape::kWarps;
    const int store_row = warp * kRowsPerWarp;
    store_rows<kCols, kRowsPerWarp>(kKeysKept ? args.dk : args.dq, kept_row + store_row, valid - store_row, kept_head,
                                    args.head_dim, kept_a, store_row, lane);
    if constexpr (kKeysKept)
      store_rows<kCols, kRowsPerWarp>(args.dv, kept_row + store_row, valid - store_row, kept_head, args.head_dim,
                                      kept_b, store_row, lane);
  }
};

template <int kCols, bool kKeysKept, bool kDropout, bool kBounded>
__global__ void __launch_bounds__(BackwardShape<kCols, kDropout>::kThreads, BackwardShape<kCols, kDropout>::kResident)
    attention_backward_kernel(const AttentionArgs args) {
  using Pass = BackwardPass<kCols, kKeysKept, kDropout, kBounded>;
  const Pass pass{args};
  pass.load_kept();
  Streamed at{pass.first_row, kKeysKept ? pass.kept_head * args.group : pass.kept_head / args.group, 0};
  pass.load_streamed(at);
  RowStatistics<Pass::kBlocks> kept_rows;
  if constexpr (!kKeysKept) pass.load_statistics(kept_rows);
  const LaneOffsets<kCols> lanes{{pass.warp_row, block_place(pass.lane)}, {0, block_place(pass.lane)}};
  typename Pass::Sums sums = {}, dv = {};  // sums: of dk or dq
#pragma unroll 1
  for (int step = 0; step < pass.steps; ++step, pass.advance(at)) {
    at.stage = step % 2;
    copies_wait();
    __syncthreads();  // this step's tiles have arrived, and no warp still reads the previous ones
    if (step + 1 < pass.steps) {
      Streamed next = at;
      pass.advance(next);
      next.stage = 1 - at.stage;
      pass.load_streamed(next);
    }
    const auto [seen, whole] = pass.visibility(at.row);
    if (!seen) continue;
    at.a = pass.streamed_a + at.stage * Pass::kTile;
    at.b = pass.streamed_b + at.stage * Pass::kTile;
    typename Pass::Scores p = {};
    pass.set_probabilities(p, kept_rows, lanes, at, whole);
    typename Pass::Dropped dropped = {};
    if constexpr (kDropout) pass.draw(dropped, at);
    if constexpr (kKeysKept) pass.add_to_dv(dv, p, dropped, lanes, at);
    pass.add_score_gradients(sums, p, dropped, kept_rows, lanes, at);
  }
  copies_wait();    // if there were no steps
  __syncthreads();  // no warp still reads the kept tiles
  pass.store(sums, dv);
}

template <int kCols>
struct Backward {
  static int64_t shared_bytes() { return BackwardShape<kCols, false>::kSharedBytes; }
  template <bool kKeysKept, bool kDropout, bool kBounded>
  static void launch_pass(cudaStream_t stream, const AttentionArgs& args, int64_t heads, int64_t batch) {
    using Shape = BackwardShape<kCols, kDropout>;
    const dim3 blocks(blocks_for(kKeysKept ? args.k_len : args.q_len, Shape::kKept), static_cast<unsigned>(heads),
                      static_cast<unsigned>(batch));
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
