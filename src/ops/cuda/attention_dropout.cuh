#pragma once
// Dropout masks of attention: the same draws as in the CPU kernels, exchanged among the lanes that use them.
#include "ops/cuda/attention_args.h"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {

/// Returns the index of (sequence, head, query, key 0) in the whole batch.
__device__ __forceinline__ uint64_t dropout_index(const AttentionArgs& args, int sequence, int head, int query) {
  const int64_t global_head = args.first_head + sequence * args.heads_global + head;
  const int64_t position = args.first_key + args.shift + query;
  return static_cast<uint64_t>((global_head * args.length + position) * args.length + args.first_key);
}
/// Returns true if the four keys from each multiple of four on have the draws of one Philox call, in every row.
__device__ __forceinline__ bool draws_by_four(const AttentionArgs& args) {
  return args.length % 4 == 0 && args.first_key % 4 == 0;
}

/// Returns the draw of one element.
__device__ __forceinline__ uint32_t dropout_draw(const AttentionArgs& args, uint64_t index) {
  const Philox4 draws = philox_block(args.key, index / 4, args.step);
  const uint32_t low = index % 2 == 0 ? draws[0] : draws[1], high = index % 2 == 0 ? draws[2] : draws[3];
  return index % 4 < 2 ? low : high;
}

/// Exchanges the upper lane's x with the lower lane's y, for lanes whose numbers differ in `mask` (a power of two).
__device__ __forceinline__ void exchange(uint32_t& x, uint32_t& y, int lane, int mask) {
  const bool upper = (lane & mask) != 0;
  const uint32_t received = shuffle_xor(upper ? x : y, mask);
  x = upper ? received : x;
  y = upper ? y : received;
}

/// Returns the draws of the four elements that a lane holds in a block of sums of mma.m16n8k16, whose rows are queries,
/// and whose columns are keys beginning with first_key. The index of key 0 in row r (below: column r) is line_index +
/// r·length. All lanes of the warp must call it.
__device__ __forceinline__ void draws_of_query_rows(const AttentionArgs& args, uint64_t line_index, int first_key,
                                                    int lane, uint32_t (&draws)[4]) {
  const int g = lane / 4, t = lane % 4;
  const auto length = static_cast<uint64_t>(args.length);
  if (draws_by_four(args)) {  // two adjacent lanes draw one row each, for both lanes
    const uint64_t index =
        line_index + static_cast<uint64_t>(g + 8 * (t & 1)) * length + static_cast<uint64_t>(first_key + 4 * (t / 2));
    const Philox4 block = philox_block(args.key, index / 4, args.step);
    for (int i = 0; i < 4; ++i) draws[i] = block[static_cast<size_t>(i)];
    exchange(draws[0], draws[2], lane, 1);
    exchange(draws[1], draws[3], lane, 1);
  } else {
    for (int i = 0; i < 4; ++i)
      draws[i] = dropout_draw(args, line_index + static_cast<uint64_t>(g + 8 * (i / 2)) * length +
                                        static_cast<uint64_t>(first_key + 2 * t + i % 2));
  }
}
/// The same for a block whose rows are keys beginning with first_key, and whose columns are queries.
__device__ __forceinline__ void draws_of_key_rows(const AttentionArgs& args, uint64_t line_index, int first_key,
                                                  int lane, uint32_t (&draws)[4]) {
  const int g = lane / 4, t = lane % 4;
  const auto length = static_cast<uint64_t>(args.length);
  if (draws_by_four(
          args)) {  // each of four lanes (4 apart) draws one of their four groups of keys; then they transpose
    const uint64_t index = line_index + static_cast<uint64_t>(2 * t + g % 2) * length +
                           static_cast<uint64_t>(first_key + g / 4 * 4 + g % 4 / 2 * 8);
    const Philox4 block = philox_block(args.key, index / 4, args.step);
    for (int i = 0; i < 4; ++i) draws[i] = block[static_cast<size_t>(i)];
    exchange(draws[0], draws[1], lane, 4);
    exchange(draws[2], draws[3], lane, 4);
    exchange(draws[0], draws[2], lane, 8);
    exchange(draws[1], draws[3], lane, 8);
  } else {
    for (int i = 0; i < 4; ++i)
      draws[i] = dropout_draw(args, line_index + static_cast<uint64_t>(2 * t + i % 2) * length +
                                        static_cast<uint64_t>(first_key + g + 8 * (i / 2)));
  }
}

}  // namespace trainer::ops::cuda
