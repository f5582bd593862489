#pragma once
// The keys that a query attends to: those from its first visible key to its own position, as far as they exist; perhaps
// none. First keys do not decrease from one query of a sequence to the next.
#include "ops/cuda/attention_args.h"
#include "ops/cuda/warp.cuh"

namespace trainer::ops::cuda {

/// Returns the first key that query `row` of a sequence may see; for rows beyond the last one, that of the last one.
__device__ __forceinline__ int first_key(const AttentionArgs& args, int64_t sequence, int row) {
  row = smaller(row, args.q_len - 1);
  int first = 0;
  if (args.window > 0) first = larger(0, args.shift + row + 1 - args.window);
  if (args.first_keys != nullptr) first = larger(first, args.first_keys[sequence * args.q_len + row] - args.first_key);
  return first;
}

/// Returns the end of the queries that see any key before `key`: all queries from there on see none of them.
__device__ __forceinline__ int queries_before(const AttentionArgs& args, int64_t sequence, int key) {
  int low = 0, high = args.q_len;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (first_key(args, sequence, middle) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace trainer::ops::cuda
