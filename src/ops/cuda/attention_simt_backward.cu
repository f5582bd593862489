// Attention backward with f32 GEMMs, in the two passes of attention_backward.cu.
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mask.cuh"
#include "ops/cuda/attention_simt.cuh"

namespace trainer::ops::cuda {
namespace {

constexpr float kLog2e = 1.44269504088896340736f;
/// Two blocks of operands, one of probabilities and one of score gradients.
constexpr size_t kSharedBytes = 4 * kBlockElements * sizeof(float);

/// With kKeysKept, keeps a block of keys and iterates over the queries of all heads of the group, for dk and dv.
/// Without it, keeps a block of queries and iterates over keys, for dq.
template <typename T, int kColumnBlocks, bool kKeysKept>
__global__ void __launch_bounds__(kBlockThreads, kColumnBlocks == 1 ? 2 : 1)
    plain_backward_kernel(const AttentionArgs args) {
  float* const left = dynamic_shared<float>();
  float* const right = left + kBlockElements;
  float* const weights = right + kBlockElements;      // probabilities after dropout
  float* const gradients = weights + kBlockElements;  // score gradients

  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int kept_length = kKeysKept ? args.k_len : args.q_len, passing_length = kKeysKept ? args.q_len : args.k_len;
  const int first = static_cast<int>(kKeysKept ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kBlockRows;
  const int kept_head = static_cast<int>(blockIdx.y), valid = smaller(kBlockRows, kept_length - first);
  const int sequence = static_cast<int>(blockIdx.z) / args.slices, slice = static_cast<int>(blockIdx.z) % args.slices;
  const int first_column = slice * kColumnBlocks * kBlockRows;
  const int first_row =
      (kKeysKept ? larger(0, first - args.shift) : first_key(args, sequence, first)) / kBlockRows * kBlockRows;
  const int end_row =
      kKeysKept ? queries_before(args, sequence, first + valid) : smaller(args.shift + first + valid, args.k_len);
  const int64_t key_row = sequence * args.k_capacity, query_row = static_cast<int64_t>(sequence) * args.q_len;
  const int64_t kept_row = (kKeysKept ? key_row : query_row) + first;
  const AttentionRows &kept_a = kKeysKept ? args.k : args.q, &kept_b = kKeysKept ? args.v : args.dout;
  const AttentionRows &passing_a = kKeysKept ? args.q : args.k, &passing_b = kKeysKept ? args.dout : args.v;

  float sums_a[kColumnBlocks][4][4] = {};                  // dk or dq
  float sums_b[kKeysKept ? kColumnBlocks : 1][4][4] = {};  // dv
  for (int member = 0; member < (kKeysKept ? args.group : 1); ++member) {
    const int head = kKeysKept ? kept_head * args.group + member : kept_head;  // query head
    const int passing_head = kKeysKept ? head : kept_head / args.group;
    const int64_t statistics = (static_cast<int64_t>(sequence) * args.heads + head) * args.q_len;
    for (int row = first_row; row < end_row; row += kBlockRows) {
      const int64_t passing_row = (kKeysKept ? query_row : key_row) + row;
      const int passing = passing_length - row;
      float p[4][4] = {}, dp[4][4] = {};
      for (int column = 0; column < args.head_dim; column += kBlockRows) {
        __syncthreads();
        load_block<T>(left, kept_a, kept_row, valid, kept_head, args.head_dim, column);
        load_block<T>(right, passing_a, passing_row, passing, passing_head, args.head_dim, column);
        __syncthreads();
        multiply_blocks(p, left, right, ty, tx);
        __syncthreads();
        load_block<T>(left, kept_b, kept_row, valid, kept_head, args.head_dim, column);
        load_block<T>(right, passing_b, passing_row, passing, passing_head, args.head_dim, column);
        __syncthreads();
        multiply_blocks(dp, left, right, ty, tx);
      }
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          const int kept = first + 4 * ty + i, other = row + tx + 16 * j;
          const int query = kKeysKept ? other : kept, key = kKeysKept ? kept : other;
          float weight = 0, gradient = 0;
          if (query < args.q_len && key <= smaller(args.shift + query, args.k_len - 1) &&
              key >= first_key(args, sequence, query)) {
            const float lse = args.lse[statistics + query] * kLog2e;
            const float probability = fast_exp2(fmaf(p[i][j], args.scale_log2, -lse));
            float factor = 1;
            if (args.threshold > 0) {
              const uint64_t index = dropout_index(args, sequence, head, query) + static_cast<uint64_t>(key);
              factor = dropout_draw(args, index) < args.threshold ? 0.0f : args.keep_scale;
            }
            weight = probability * factor;
            gradient = probability * (dp[i][j] * factor - args.delta[statistics + query]);
          }
          if constexpr (kKeysKept) weights[(4 * ty + i) * kBlockLd + tx + 16 * j] = weight;
          gradients[(4 * ty + i) * kBlockLd + tx + 16 * j] = gradient;
        }
      }
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
        const int column = first_column + block * kBlockRows;
        __syncthreads();
        load_block<T>(left, passing_a, passing_row, passing, passing_head, args.head_dim, column);
        if constexpr (kKeysKept)
          load_block<T>(right, passing_b, passing_row, passing, passing_head, args.head_dim, column);
        __syncthreads();
        add_weighted_block(sums_a[block], gradients, left, ty, tx);
        if constexpr (kKeysKept) add_weighted_block(sums_b[block], weights, right, ty, tx);
      }
    }
  }

  const float scales[4] = {args.scale, args.scale, args.scale, args.scale}, ones[4] = {1, 1, 1, 1};
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
    const int column = first_column + block * kBlockRows;
    store_block<T>(kKeysKept ? args.dk : args.dq, kept_row, valid, kept_head, args.head_dim, column, sums_a[block],
                   scales, ty, tx);
    if constexpr (kKeysKept)
      store_block<T>(args.dv, kept_row, valid, kept_head, args.head_dim, column, sums_b[block], ones, ty, tx);
  }
}

}  // namespace

template <typename T>
void plain_backward(cudaStream_t stream, AttentionArgs args, int64_t batch) {
  with_column_blocks(args, [&](auto blocks) {
    const auto sequences = static_cast<unsigned>(batch * args.slices);
    const auto grid = [&](int rows, int heads) {
      return dim3(blocks_for(rows, kBlockRows), static_cast<unsigned>(heads), sequences);
    };
    device::cuda::launch(stream, {grid(args.k_len, args.kv_heads), dim3(kBlockThreads), kSharedBytes},
                         plain_backward_kernel<T, blocks(), true>, args);
    device::cuda::launch(stream, {grid(args.q_len, args.heads), dim3(kBlockThreads), kSharedBytes},
                         plain_backward_kernel<T, blocks(), false>, args);
  });
}
template void plain_backward<float>(cudaStream_t, AttentionArgs, int64_t);
template void plain_backward<bf16>(cudaStream_t, AttentionArgs, int64_t);

}  // namespace trainer::ops::cuda
