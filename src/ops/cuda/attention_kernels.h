#pragma once
// The attention kernels, grouped by source file. Pointers may be null if an argument is not read.
#include <cstdint>
#include <type_traits>

#include "device/cuda/runtime.h"
#include "ops/cuda/attention_args.h"
#include "tensor/exec.h"

namespace trainer::ops::cuda {

/// Largest head size that runs on tensor cores in bf16. Tiles have 32, 64, 96, 128 or 256 columns.
inline constexpr int64_t kTensorHeadDim = 256;
template <template <int> typename Kernel, typename F>
auto with_columns(int64_t head_dim, F&& call) {
  if (head_dim <= 32) return call(Kernel<32>());
  if (head_dim <= 64) return call(Kernel<64>());
  if (head_dim <= 96) return call(Kernel<96>());
  if (head_dim <= 128) return call(Kernel<128>());
  return call(Kernel<256>());
}

/// Calls `call` with two constants: whether there is dropout, and whether the first visible key of some rows is not 0.
template <typename F>
void with_features(const AttentionArgs& args, F&& call) {
  const bool dropout = args.threshold > 0, bounded = args.window > 0 || args.first_keys != nullptr;
  if (dropout) {
    bounded ? call(std::true_type(), std::true_type()) : call(std::true_type(), std::false_type());
  } else {
    bounded ? call(std::false_type(), std::true_type()) : call(std::false_type(), std::false_type());
  }
}

/// Returns the number of blocks of `rows` rows that cover `count`.
constexpr unsigned blocks_for(int64_t count, int64_t rows) { return static_cast<unsigned>((count + rows - 1) / rows); }

// attention_forward.cu, attention_backward.cu: bf16 on tensor cores.
int64_t tensor_forward_shared_bytes(int64_t head_dim);
void tensor_forward(cudaStream_t stream, const AttentionArgs& args, int64_t batch);
int64_t tensor_backward_shared_bytes(int64_t head_dim);
/// Computes dq, dk, dv from delta and lse.
void tensor_backward(cudaStream_t stream, const AttentionArgs& args, int64_t batch);

// attention_simt.cu, attention_simt_backward.cu: f32 or bf16 (T) with f32 arithmetic, for any head size.
template <typename T>
void plain_forward(cudaStream_t stream, AttentionArgs args, int64_t batch);
template <typename T>
void plain_backward(cudaStream_t stream, AttentionArgs args, int64_t batch);

// activation.cu
/// sum += part: bf16 and fp32 [n, m], column ranges allowed.
void add_bf16(Exec& ex, const Tensor& part, const Tensor& sum);

// attention_decode.cu: a small number of queries.
/// delta = Σ dout·out of each row and head.
template <typename T>
void row_products(cudaStream_t stream, const AttentionArgs& args, int64_t batch);
/// Keys are divided among blocks, kDecodeKeys each; `parts` has room for decode_parts(…) floats.
int64_t decode_parts(int64_t batch, int64_t q_len, int64_t heads, int64_t head_dim, int64_t k_capacity);
template <typename T>
void decode(cudaStream_t stream, const AttentionArgs& args, int64_t batch);

}  // namespace trainer::ops::cuda
