#pragma once
// The keys that a query attends to, for kernel files (*.isa.cpp): those from its first visible key to its own position.
// A query may see none, if its position is before all keys or its first visible key is after all or after itself.
// First keys do not decrease from one query of a sequence to the next, so the queries that see any key of a block are
// adjacent, and so are the keys that a block of queries sees.
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// True if some queries do not see all earlier keys.
[[gnu::always_inline]] inline bool hides_keys(const AttentionJob& job) {
  return job.window > 0 || job.first_keys != nullptr;
}
/// Returns the first key that query `row` of a sequence sees, if it sees any.
inline int64_t first_key(const AttentionJob& job, int64_t sequence, int64_t row) {
  int64_t first = 0;
  if (job.window > 0) first = larger(0, job.shift + row + 1 - job.window);
  if (job.first_keys != nullptr) first = larger(first, job.first_keys[sequence * job.q_len + row] - job.first_key);
  return first;
}
/// The keys that some queries may see; they begin with a block. 0, 0: none.
struct KeyRange {
  int64_t begin, end;
  bool empty() const { return end == 0; }
};
/// Returns those of `rows` queries from `row` on.
inline KeyRange keys_of(const AttentionJob& job, int64_t sequence, int64_t row, int64_t rows) {
  const int64_t first = first_key(job, sequence, row), end = smaller(job.k_len, job.shift + row + rows);
  if (first >= end) return {0, 0};  // also if its block has other keys
  return {first / kKeyBlock * kKeyBlock, end};
}
/// Returns the first query of the first block that sees any key from `key` on.
inline int64_t first_queries(const AttentionJob& job, int64_t key) {
  return larger(0, key - job.shift) / kQueryBlock * kQueryBlock;
}
/// Returns the end of the queries that see any key before `key`: all queries from there on see none of them.
inline int64_t queries_before(const AttentionJob& job, int64_t sequence, int64_t key) {
  if (!hides_keys(job)) return job.q_len;
  int64_t low = 0, high = job.q_len;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (first_key(job, sequence, middle) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
