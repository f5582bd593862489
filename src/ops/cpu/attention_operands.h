#pragma once
// Operands of attention on bf16 panels (attention_panels.h), for kernel files (*.isa.cpp): their addresses, dropout of
// the keys visible to a query, and the packing of keys, values and queries.
#include "ops/cpu/attention_dropout.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_mask.h"
#include "ops/cpu/attention_rows.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/math_bf16.h"
#include "ops/cpu/tile_panels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

constexpr int64_t kSide = kTilePanel;  // side of a square of scores: a panel of keys by a panel of queries
constexpr int64_t kQueryPanels = kQueryBlock / kSide;  // panels per block of queries
constexpr int64_t kKeyPanels = kKeyBlock / kSide;
constexpr int64_t kVector = kLanes<float>;
static_assert(kQueryBlock % kSide == 0 && kKeyBlock % kSide == 0);

[[gnu::always_inline]] inline int64_t panels_in(int64_t n) { return (n + kSide - 1) / kSide; }
[[gnu::always_inline]] inline bf16* at(const AttentionRows& x, int64_t row, int64_t head) {
  return at<bf16>(x, row, head);
}

/// Fills factors[key][query], rows `ld` apart, for `keys` keys from `key` and for `queries` queries from `first`.
/// The rest of the panel or block is filled too: with 0 beyond `queries` and for keys that are not visible to a query.
void fill_dropout_square(const AttentionJob& job, int64_t sequence, int64_t head, int64_t first, int64_t key,
                         int64_t queries, int64_t keys, float* factors, int64_t ld) {
  float row[kKeyBlock];
  for (int64_t query = 0; query < ld; ++query) {
    const int64_t seen = query < queries ? smaller(keys, job.shift + first + query + 1 - key) : 0;
    if (seen > 0)
      fill_dropout_factors(job, dropout_index(job, sequence, head, first + query) + static_cast<uint64_t>(key), seen,
                           row);
    for (int64_t k = 0; k < keys; ++k) factors[k * ld + query] = k < seen ? row[k] : 0.0f;
  }
}

[[gnu::always_inline]] inline bool any(Vec<int32_t> mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < kVector; ++i) found |= mask[i];
  return found != 0;
#endif
}
/// Returns x, with `other` in the lanes below `first`.
[[gnu::always_inline]] inline Vec<float> lanes_from(Vec<float> x, int64_t first, float other) {
  Vec<float> lane{};
  for (int i = 0; i < kVector; ++i) lane[i] = static_cast<float>(i);
  return lane >= splat(static_cast<float>(first)) ? x : splat(other);
}

// --- common to all queries of a head ---

/// Returns the panel of 32 rows of a left operand with `terms` elements along the contraction dimension.
[[gnu::always_inline]] inline bf16* panel_at(std::byte* packed, int64_t slot, int64_t rows, int64_t terms,
                                             int64_t row) {
  return as<bf16>(packed) + slot * rows * terms + row * terms;
}

/// Prefetches the rows of a head that are packed next. They are one token apart, a stride that hardware prefetchers do
/// not follow.
[[gnu::always_inline]] inline void prefetch_rows(const bf16* x, int64_t ld, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) ask_for(x + row * ld, columns);
}

/// Packs a block of keys: rows of K (and V) for contraction over D; columns of V (backward: of K) for contraction over
/// keys.
void pack_keys(const AttentionJob& job, int64_t task) {
  const int64_t slot = task / job.key_blocks, key = task % job.key_blocks * kKeyBlock, ld = job.row_ld;
  const int64_t n = smaller(kKeyBlock, job.k_len - key), pair = job.first_pair + slot, d = job.head_dim;
  const int64_t row = pair / job.kv_heads * job.key_rows + key, head = pair % job.kv_heads;
  const auto pack_rows = [&](const AttentionRows& x, std::byte* packed, int64_t r) {
    pack_a_terms(at(x, row + r, head), x.ld, n - r, d, panel_at(packed, slot, job.k_pad, ld, key + r));
  };
  const auto pack_columns = [&](const AttentionRows& x, std::byte* packed, int64_t r) {
    for (int64_t c = 0; c < ld; c += kSide)
      pack_a_rows(at(x, row + r, head) + c, x.ld, smaller(kSide, d - c), smaller(kSide, n - r),
                  panel_at(packed, slot, ld, job.k_pad, c) + (key + r) / kTileTerms * kStepElements, 0);
  };
  const auto ask = [&](int64_t r) {
    const int64_t rows = smaller(kSide, n - r);
    prefetch_rows(at(job.k, row + r, head), job.k.ld, rows, d);
    prefetch_rows(at(job.v, row + r, head), job.v.ld, rows, d);
  };
  ask(0);
  for (int64_t r = 0; r < n; r += kSide) {
    ask(r + kSide);
    pack_rows(job.k, job.keys, r);
    if (job.backward) {
      pack_rows(job.v, job.values, r);
      pack_columns(job.k, job.keys_t, r);
    } else {
      pack_columns(job.v, job.values_t, r);
    }
  }
}

/// Packs a block of queries of the current head (backward): Q and dO twice, for contraction over D and over queries,
/// and Σ dO·O. Log-sum-exps are stored in units of log 2, and as +inf beyond the last query, so that probabilities
/// there are 0.
void pack_queries(const AttentionJob& job, int64_t task) {
  const int64_t slot = task / job.query_blocks, query = task % job.query_blocks * kQueryBlock;
  const int64_t m = smaller(kQueryBlock, job.q_len - query), pair = job.first_pair + slot, d = job.head_dim;
  const int64_t head = pair % job.kv_heads * job.group + job.head_in_group, sequence = pair / job.kv_heads;
  const int64_t row = sequence * job.q_len + query, ld = job.row_ld;
  const bf16 *q = at(job.q, row, head), *dout = at(job.dout, row, head), *out = at(job.out, row, head);
  const auto pack = [&](const bf16* x, int64_t ldx, std::byte* columns, std::byte* rows) {
    for (int64_t r = 0; r < kQueryBlock; r += kSide)
      pack_b_terms(x + r * ldx, ldx, m - r, d, panel_at(columns, slot, job.q_pad, ld, query + r));
    bf16* const block = panel_at(rows, slot, job.q_pad, ld, query);
    for (int64_t c = 0; c < ld; c += kSide)
      pack_b_rows(x + c, ldx, smaller(kSide, d - c), m, block + c * kQueryBlock, 0);
    // Clears the second half of a block that has only one panel of queries, since both halves are read.
    if (m <= kSide)
      for (int64_t c = 0; c < ld; c += kSide)
        std::memset(static_cast<void*>(block + c * kQueryBlock + kStepElements), 0, kStepElements * sizeof(bf16));
  };
  prefetch_rows(q, job.q.ld, m, d);
  prefetch_rows(dout, job.dout.ld, m, d);
  prefetch_rows(out, job.out.ld, m, d);
  pack(q, job.q.ld, job.queries_t, job.queries);
  pack(dout, job.dout.ld, job.douts_t, job.douts);
  const float* const lse = as<const float>(job.lse) + (sequence * job.heads + head) * job.q_len + query;
  float* const shift = as<float>(job.shifts) + slot * job.q_pad + query;
  float* const delta = as<float>(job.deltas) + slot * job.q_pad + query;
  for (int64_t r = 0; r < kQueryBlock; ++r) {
    shift[r] = r < m ? lse[r] * static_cast<float>(kLog2E) : __builtin_inff();
    delta[r] = r < m ? sum_of<float>(d,
                                     [&](int64_t c, auto tag) {
                                       return get(out + r * job.out.ld + c, tag) * get(dout + r * job.dout.ld + c, tag);
                                     })
                     : 0.0f;
  }
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
