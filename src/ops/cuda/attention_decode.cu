// Attention of a small number of queries over a long key-value cache: keys are divided among blocks, whose partial
// results are merged in order. Also computes Σ dout·out per row, the first step of the backward pass.
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mask.cuh"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/lanes.cuh"

namespace trainer::ops::cuda {
namespace {

/// Keys per part. It is the same on every GPU, so that results do not depend on the number of multiprocessors.
constexpr int kDecodeKeys = 256;
/// Number of rows (query heads of a group × queries) that share a pass over the keys. Each has a warp for its softmax.
constexpr int kDecodeRows = 4;
constexpr int kDecodeThreads = 32 * kDecodeRows;
/// kKeyLanes threads read one row of keys together; kValueLanes threads span one block of value columns.
constexpr int kKeyLanes = 8, kValueLanes = 16, kValueRows = kDecodeThreads / kValueLanes;

/// Elements of T in 16 bytes, the unit of loads.
template <typename T>
struct DecodeShape {
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  static constexpr int kColumns = kValueLanes * kVector;
  static size_t shared_bytes(int head_dim) {
    const int q = kDecodeRows * (head_dim + kVector), scores = kDecodeRows * kDecodeKeys;
    return static_cast<size_t>(q + scores + kValueRows * kDecodeRows * kColumns) * sizeof(float);
  }
};

/// Loads up to kVector elements as f32, zeros beyond `count`.
template <typename T, int kVector>
__device__ __forceinline__ void load_vector(float (&values)[kVector], const T* from, int count, bool vectors) {
  if (vectors && count >= kVector) {
    const Pack<T, kVector> pack = load_pack<kVector>(from);
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[e] = static_cast<float>(pack.values[e]);
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[e] = e < count ? static_cast<float>(from[e]) : 0.0f;
  }
}

/// Returns a part of a row: the largest score in units of log 2, the sum of probabilities relative to that score, and
/// the weighted sum of values.
__device__ __forceinline__ float* part_of(const AttentionArgs& args, int64_t row, int split) {
  const int64_t splits = (args.k_capacity + kDecodeKeys - 1) / kDecodeKeys;
  return args.parts + (row * splits + split) * (args.head_dim + 2);
}

template <typename T>
__global__ void __launch_bounds__(kDecodeThreads) decode_parts_kernel(const AttentionArgs args) {
  using Shape = DecodeShape<T>;
  constexpr int kVector = Shape::kVector;
  const int q_ld = args.head_dim + kVector;
  float* const q = dynamic_shared<float>();
  float* const scores = q + kDecodeRows * q_ld;
  float* const sums = scores + kDecodeRows * kDecodeKeys;

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int split = static_cast<int>(blockIdx.x), begin = split * kDecodeKeys;
  const int keys = smaller(kDecodeKeys, args.k_len - begin);
  const int group_rows = args.group * args.q_len, passes = (group_rows + kDecodeRows - 1) / kDecodeRows;
  const int kv_head = static_cast<int>(blockIdx.y) / passes;
  const int first_row = static_cast<int>(blockIdx.y) % passes * kDecodeRows;
  const int64_t sequence = blockIdx.z;
  if (begin + kDecodeKeys <= first_key(args, sequence, 0)) return;  // no query sees any of these keys
  const int64_t key_row = sequence * args.k_capacity + begin;
  const auto head_of = [&](int r) { return kv_head * args.group + (first_row + r) / args.q_len; };
  const auto query_of = [&](int r) { return (first_row + r) % args.q_len; };

  for (int r = 0; r < kDecodeRows; ++r) {
    const bool inside = first_row + r < group_rows;
    const T* const row =
        inside ? row_of<const T>(args.q, sequence * args.q_len + query_of(r), head_of(r), args.head_dim) : nullptr;
    for (int c = thread; c < q_ld; c += kDecodeThreads)
      q[r * q_ld + c] = inside && c < args.head_dim ? static_cast<float>(row[c]) : 0.0f;
  }
  __syncthreads();

  const T* const k = row_of<const T>(args.k, key_row, kv_head, args.head_dim);
  for (int first = 0; first < keys; first += kDecodeThreads / kKeyLanes) {
    const int key = first + thread / kKeyLanes;
    float dot[kDecodeRows] = {};
    if (key < keys) {
      for (int column = thread % kKeyLanes * kVector; column < args.head_dim; column += kKeyLanes * kVector) {
        float values[kVector];
        load_vector<T>(values, k + key * args.k.ld + column, args.head_dim - column, args.k.vectors);
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
#pragma unroll
          for (int r = 0; r < kDecodeRows; ++r) dot[r] = fmaf(q[r * q_ld + column + e], values[e], dot[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kDecodeRows; ++r) {
      for (int mask = kKeyLanes / 2; mask > 0; mask /= 2) dot[r] += shuffle_xor(dot[r], mask);
      const bool seen =
          begin + key <= args.shift + query_of(r) && begin + key >= first_key(args, sequence, query_of(r));
      if (thread % kKeyLanes == 0 && key < keys)
        scores[r * kDecodeKeys + key] = seen ? dot[r] * args.scale_log2 : -INFINITY;
    }
  }
  __syncthreads();

  const int row_head = head_of(warp), row_query = query_of(warp);
  const int64_t part_row = (sequence * args.heads + row_head) * args.q_len + row_query;
  float* const mine = scores + warp * kDecodeKeys;
  float top = -INFINITY, sum = 0;
  for (int key = lane; key < keys; key += 32) top = fmaxf(top, mine[key]);
  for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, shuffle_xor(top, mask));
  const float shift = top == -INFINITY ? 0.0f : top;
  for (int key = lane; key < keys; key += 32) {
    mine[key] = fast_exp2(mine[key] - shift);
    sum += mine[key];
  }
  sum = warp_sum(sum);
  if (lane == 0 && first_row + warp < group_rows) {
    part_of(args, part_row, split)[0] = top;
    part_of(args, part_row, split)[1] = sum;
  }
  __syncthreads();

  const T* const v = row_of<const T>(args.v, key_row, kv_head, args.head_dim);
  const int value_lane = thread % kValueLanes, value_row = thread / kValueLanes;
  for (int block = 0; block < args.head_dim; block += Shape::kColumns) {
    const int column = block + value_lane * kVector;
    float weighted[kDecodeRows][kVector] = {};
    if (column < args.head_dim) {
      for (int key = value_row; key < keys; key += kValueRows) {
        float values[kVector];
        load_vector<T>(values, v + key * args.v.ld + column, args.head_dim - column, args.v.vectors);
#pragma unroll
        for (int r = 0; r < kDecodeRows; ++r) {
          const float p = scores[r * kDecodeKeys + key];
#pragma unroll
          for (int e = 0; e < kVector; ++e) weighted[r][e] = fmaf(p, values[e], weighted[r][e]);
        }
      }
    }
    for (int r = 0; r < kDecodeRows; ++r) {
      for (int e = 0; e < kVector; ++e)
        sums[(value_row * kDecodeRows + r) * Shape::kColumns + value_lane * kVector + e] = weighted[r][e];
    }
    __syncthreads();
    for (int i = thread; i < kDecodeRows * Shape::kColumns; i += kDecodeThreads) {
      const int r = i / Shape::kColumns, c = i % Shape::kColumns;
      if (first_row + r >= group_rows || block + c >= args.head_dim) continue;
      float total = 0;
      for (int g = 0; g < kValueRows; ++g) total += sums[(g * kDecodeRows + r) * Shape::kColumns + c];
      const int64_t row = (sequence * args.heads + head_of(r)) * args.q_len + query_of(r);
      part_of(args, row, split)[2 + block + c] = total;
    }
    __syncthreads();
  }
}

/// Merges the parts of a row, first to last, into out and lse.
template <typename T>
__global__ void __launch_bounds__(kDecodeThreads) decode_combine_kernel(const AttentionArgs args) {
  const int head = static_cast<int>(blockIdx.x) / args.q_len, query = static_cast<int>(blockIdx.x) % args.q_len;
  const int64_t sequence = blockIdx.y, row = (sequence * args.heads + head) * args.q_len + query;
  const int splits = (args.k_len + kDecodeKeys - 1) / kDecodeKeys;
  const int start = first_key(args, sequence, query) / kDecodeKeys;  // earlier parts may not have been written
  float top = -INFINITY, sum = 0;
  for (int split = start; split < splits; ++split) top = fmaxf(top, part_of(args, row, split)[0]);
  const float shift = top == -INFINITY ? 0.0f : top;
  for (int split = start; split < splits; ++split) {
    const float* const part = part_of(args, row, split);
    sum = fmaf(part[1], fast_exp2(part[0] - shift), sum);
  }
  T* const out = row_of<T>(args.out, sequence * args.q_len + query, head, args.head_dim);
  for (int c = static_cast<int>(threadIdx.x); c < args.head_dim; c += kDecodeThreads) {
    float total = 0;
    for (int split = start; split < splits; ++split) {
      const float* const part = part_of(args, row, split);
      total = fmaf(part[2 + c], fast_exp2(part[0] - shift), total);
    }
    out[c] = T(sum == 0 ? 0.0f : total / sum);  // 0: no key visible
  }
  constexpr float kLn2 = 0.69314718055994530942f;
  if (args.lse != nullptr && threadIdx.x == 0) args.lse[row] = fmaf(top, kLn2, logf(sum));
}

/// `lanes` adjacent lanes, a power of two, share each row and head; a lane reads 16 bytes at a time.
constexpr int kProductThreads = 256;
template <typename T>
__global__ void __launch_bounds__(kProductThreads)
    row_products_kernel(const AttentionArgs args, int64_t items, int lanes, bool vectors) {
  constexpr int kVector = DecodeShape<T>::kVector;
  const int64_t i = quotient(int64_t{blockIdx.x} * kProductThreads + threadIdx.x, lanes);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t row = quotient(i, args.heads);
  const int head = static_cast<int>(i - row * args.heads);
  float sum = 0;
  if (i < items) {
    const T* const out = row_of<const T>(args.out, row, head, args.head_dim);
    const T* const dout = row_of<const T>(args.dout, row, head, args.head_dim);
    for (int c = lane * kVector; c < args.head_dim; c += lanes * kVector) {
      float x[kVector], y[kVector];
      load_vector<T>(x, out + c, args.head_dim - c, vectors);
      load_vector<T>(y, dout + c, args.head_dim - c, vectors);
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum = fmaf(x[e], y[e], sum);
    }
  }
  for (int mask = lanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (i >= items || lane != 0) return;
  const int64_t sequence = quotient(row, args.q_len);
  args.delta[(sequence * args.heads + head) * args.q_len + (row - sequence * args.q_len)] = sum;
}

}  // namespace

template <typename T>
void row_products(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
  const int64_t items = batch * args.q_len * args.heads;
  int lanes = 1;
  while (lanes < 32 && lanes * DecodeShape<T>::kVector < args.head_dim) lanes *= 2;
  device::cuda::launch(stream, {dim3(blocks_for(items * lanes, kProductThreads)), dim3(kProductThreads)},
                       row_products_kernel<T>, args, items, lanes, args.out.vectors && args.dout.vectors);
}
template void row_products<float>(cudaStream_t, const AttentionArgs&, int64_t);
template void row_products<bf16>(cudaStream_t, const AttentionArgs&, int64_t);

int64_t decode_parts(int64_t batch, int64_t q_len, int64_t heads, int64_t head_dim, int64_t k_capacity) {
  return batch * q_len * heads * (head_dim + 2) * blocks_for(k_capacity, kDecodeKeys);
}

template <typename T>
void decode(cudaStream_t stream, const AttentionArgs& args, int64_t batch) {
  const auto sequences = static_cast<unsigned>(batch);
  const dim3 parts(blocks_for(args.k_len, kDecodeKeys),
                   static_cast<unsigned>(args.kv_heads) * blocks_for(args.group * args.q_len, kDecodeRows), sequences);
  if (args.k_len > 0)
    device::cuda::launch(stream, {parts, dim3(kDecodeThreads), DecodeShape<T>::shared_bytes(args.head_dim)},
                         decode_parts_kernel<T>, args);
  device::cuda::launch(stream, {dim3(static_cast<unsigned>(args.heads * args.q_len), sequences), dim3(kDecodeThreads)},
                       decode_combine_kernel<T>, args);
}
template void decode<float>(cudaStream_t, const AttentionArgs&, int64_t);
template void decode<bf16>(cudaStream_t, const AttentionArgs&, int64_t);

}  // namespace trainer::ops::cuda
