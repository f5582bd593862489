// Attention forward with f32 GEMMs, for f32 operands and for heads that are too wide for the tensor-core kernels.
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mask.cuh"
#include "ops/cuda/attention_simt.cuh"

namespace trainer::ops::cuda {
namespace {

/// Two blocks of operands, and one of probabilities.
constexpr size_t kSharedBytes = 3 * kBlockElements * sizeof(float);

template <typename T, int kColumnBlocks>
__global__ void __launch_bounds__(kBlockThreads, kColumnBlocks <= 2 ? 2 : 1)
    plain_forward_kernel(const AttentionArgs args) {
  float* const left = dynamic_shared<float>();
  float* const right = left + kBlockElements;
  float* const weights = right + kBlockElements;

  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;  // the longest rows first
  const int head = static_cast<int>(blockIdx.y), kv_head = head / args.group;
  const int sequence = static_cast<int>(blockIdx.z) / args.slices, slice = static_cast<int>(blockIdx.z) % args.slices;
  const int first_column = slice * kColumnBlocks * kBlockRows;
  const int position = args.shift + query;  // the last key that row 0 may see
  const int64_t query_row = static_cast<int64_t>(sequence) * args.q_len + query, key_row = sequence * args.k_capacity;
  const int queries = smaller(kBlockRows, args.q_len - query);

  float sums[kColumnBlocks][4][4] = {};
  float top[4], sum[4];
  int first_keys[4];
  for (int i = 0; i < 4; ++i) {
    first_keys[i] = first_key(args, sequence, query + 4 * ty + i);
    top[i] = -INFINITY;
    sum[i] = 0;
  }
  const int start = first_key(args, sequence, query) / kBlockRows * kBlockRows;
  const int end = smaller(position + queries, args.k_len);
  for (int key = start; key < end; key += kBlockRows) {
    const int keys = args.k_len - key;
    float scores[4][4] = {};
    for (int column = 0; column < args.head_dim; column += kBlockRows) {
      __syncthreads();
      load_block<T>(left, args.q, query_row, queries, head, args.head_dim, column);
      load_block<T>(right, args.k, key_row + key, keys, kv_head, args.head_dim, column);
      __syncthreads();
      multiply_blocks(scores, left, right, ty, tx);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int last = smaller(position + 4 * ty + i, args.k_len - 1);
      float next = top[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (key + tx + 16 * j > last || key + tx + 16 * j < first_keys[i]) scores[i][j] = -INFINITY;
        next = fmaxf(next, scores[i][j]);
      }
      for (int mask = 8; mask > 0; mask /= 2) next = fmaxf(next, shuffle_xor(next, mask));
      const float shift = next == -INFINITY ? 0.0f : next * args.scale_log2;  // no key visible yet: all stays 0
      const float shrink = fast_exp2(fmaf(top[i], args.scale_log2, -shift));
      top[i] = next;
      float total = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float p = fast_exp2(fmaf(scores[i][j], args.scale_log2, -shift));
        total += p;
        if (args.threshold > 0) {
          const uint64_t index =
              dropout_index(args, sequence, head, query + 4 * ty + i) + static_cast<uint64_t>(key + tx + 16 * j);
          if (dropout_draw(args, index) < args.threshold) p = 0;
        }
        weights[(4 * ty + i) * kBlockLd + tx + 16 * j] = p;
      }
      for (int mask = 8; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      sum[i] = fmaf(sum[i], shrink, total);
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[block][i][j] *= shrink;
      }
    }
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
      __syncthreads();
      load_block<T>(right, args.v, key_row + key, keys, kv_head, args.head_dim, first_column + block * kBlockRows);
      __syncthreads();
      add_weighted_block(sums[block], weights, right, ty, tx);
    }
  }

  float factors[4];
  for (int i = 0; i < 4; ++i) {
    factors[i] = sum[i] == 0 ? 0 : args.keep_scale / sum[i];  // 0: no key visible
    const int row = query + 4 * ty + i;
    if (args.lse != nullptr && slice == 0 && tx == 0 && row < args.q_len)
      args.lse[(static_cast<int64_t>(sequence) * args.heads + head) * args.q_len + row] =
          top[i] * args.scale + logf(sum[i]);
  }
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block)
    store_block<T>(args.out, query_row, queries, head, args.head_dim, first_column + block * kBlockRows, sums[block],
                   factors, ty, tx);
}

}  // namespace

template <typename T>
void plain_forward(cudaStream_t stream, AttentionArgs args, int64_t batch) {
  with_column_blocks(args, [&](auto blocks) {
    const dim3 grid(blocks_for(args.q_len, kBlockRows), static_cast<unsigned>(args.heads),
                    static_cast<unsigned>(batch * args.slices));
    device::cuda::launch(stream, {grid, dim3(kBlockThreads), kSharedBytes}, plain_forward_kernel<T, blocks()>, args);
  });
}
template void plain_forward<float>(cudaStream_t, AttentionArgs, int64_t);
template void plain_forward<bf16>(cudaStream_t, AttentionArgs, int64_t);

}  // namespace trainer::ops::cuda
