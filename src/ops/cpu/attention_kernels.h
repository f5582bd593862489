#pragma once
// The interface between attention.cpp and the kernels of an instruction set. A job describes one wave: some pairs of a
// sequence and a key/value head, whose keys and values are packed together and then read by many tasks. Plain data
// only, since this header is compiled once per instruction set.
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "device/kernel_sets.h"

namespace trainer {
struct Exec;
}

namespace trainer::ops {

struct AttentionForward;
struct AttentionBackward;

/// Rows of queries and keys that a task multiplies at a time: a block of scores stays in L2, a panel of keys in L1.
inline constexpr int64_t kQueryBlock = 64, kKeyBlock = 128;
inline constexpr int64_t kScoreLd = kKeyBlock + 16;  // row stride of a block of scores: not a power of two

/// The rows of all heads of an operand; distances in elements.
struct AttentionRows {
  std::byte* data;
  int64_t ld;    // from a row to the next one of the same head
  int64_t head;  // from a head to the next one in the same row
};

struct AttentionJob {
  int64_t q_len, k_len, k_capacity, heads, kv_heads, head_dim;
  int64_t shift;  // keys before the one at the first query's position: query i sees none from shift + i + 1 on
  int64_t first_query, first_key, length;  // positions, and the length of the sequence that they belong to
  int64_t key_rows;                        // from a sequence of k and v to the next one
  int64_t group;                           // query heads per key/value head
  double scale;
  AttentionRows q, k, v, out, dout, dq, dk, dv;
  std::byte* lse;  // [batch·heads, q_len] accumulator dtype; null: not stored

  int64_t window;             // a row sees this many keys at most; 0: no limit
  const int32_t* first_keys;  // [batch·q_len] the position of the first key that a row may see; null: no bound

  bool dropout;
  uint32_t threshold, step;  // kept if draw >= threshold
  double keep_scale;
  PhiloxKey key;
  int64_t first_sample, first_head, heads_global;

  // The wave: pairs first_pair … first_pair + pairs − 1, pair = sequence·kv_heads + key/value head.
  int64_t first_pair, pairs;
  int64_t query_blocks, key_blocks;
  int64_t head_in_group;       // backward: the current query head of each group
  int64_t chunks, chunk_keys;  // backward: keys per task; dq is summed over chunks in order
  bool backward;
  bool add_dq, add_dkv;  // outputs of the accumulator dtype, which are added to

  // Scratch. Vector kernels use elements of the accumulator dtype; row_ld is the stride of packed rows, an odd number
  // of cache lines. Panel kernels sum in f32; their operands are bf16 in panels of 32 rows or columns (tile_panels.h),
  // whose layout along the contraction dimension is not shown below, and row_ld is D rounded up to whole panels.
  int64_t row_ld;
  std::byte *keys_t, *values_t;  // [pair][panel of keys][D][panel]; panels: [pair][row_ld][k_pad]
  std::byte *keys, *values;      // [pair][k_pad][row_ld]
  std::byte *dk_sum, *dv_sum;    // [pair][k_pad][row_ld]
  std::byte* dq_parts;           // [pair][chunk][q_pad][row_ld]
  int64_t k_pad;                 // keys rounded up to whole panels
  int64_t q_pad;                 // queries; panels: rounded up to whole blocks
  std::byte* workers;            // private blocks and rows of each worker
  int64_t worker_bytes;
  // Panel kernels, backward pass, current head: Q and dO, packed for contraction over D (_t) and over queries; the
  // log-sum-exps; Σ dO·O.
  std::byte *queries_t, *queries, *douts_t, *douts;  // [pair][q_pad][row_ld]
  std::byte *shifts, *deltas;                        // [pair][q_pad]
};

/// Kernels for one element type. Tasks of the same kind are independent of each other.
struct AttentionKernels {
  /// task = pair·key_blocks + key block: packs keys and values.
  void (*pack)(const AttentionJob& job, int64_t task) = nullptr;
  /// task = pair·query_blocks + query block: packs the backward pass's operands that belong to the queries of one head
  /// of each group. Null: nothing is packed.
  void (*pack_queries)(const AttentionJob& job, int64_t task) = nullptr;
  /// task = (pair·group + head in group)·query_blocks + query_blocks − 1 − query block.
  void (*forward)(const AttentionJob& job, int64_t task, int worker) = nullptr;
  /// task = sequence·heads + head: for a small number of queries; reads keys and values in place.
  void (*decode)(const AttentionJob& job, int64_t task, int worker) = nullptr;
  /// task = pair·chunks + chunk: dk, dv of a chunk of keys and its part of dq, for one query head of each group.
  void (*backward)(const AttentionJob& job, int64_t task, int worker) = nullptr;
  /// task = pair·query_blocks + query block: dq from its parts.
  void (*sum_dq)(const AttentionJob& job, int64_t task) = nullptr;
  /// Returns the bytes of scratch of one worker.
  int64_t (*worker_bytes)(int64_t row_ld, bool backward) = nullptr;
};

// attention_pairs and attention_tiles compute bf16 attention, except for decoding, with dot products of pairs and with
// matrix tiles. Their avx512 versions require AVX512-BF16 and AMX. The versions for other instruction sets are plain
// C++, and exist only in builds with tests.
TRAINER_FOR_EACH_ISA(const AttentionKernels& attention_kernels(DType dtype);
                     extern const AttentionKernels attention_pairs, attention_tiles;)

/// Runs attention with kernels other than the device's own, for tests.
void own_attention(Exec& ex, const AttentionForward& op, const AttentionKernels& kernels);
void own_attention(Exec& ex, const AttentionBackward& op, const AttentionKernels& kernels);

}  // namespace trainer::ops
