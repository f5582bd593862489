#pragma once
// Attention on bf16 panels (tile_panels.h), for kernel files (*.isa.cpp): a Unit computes all GEMMs of panels, vector
// code the softmax. Scores are computed transposed, Sᵀ = K·Qᵀ with a row per key and a column per query, so that a
// vector holds adjacent queries, and maxima, sums, masks and log-sum-exps need no horizontal operations. Rounded
// probabilities are stored in the layout of the next GEMM. Forward: Oᵀ = Vᵀ·Pᵀ. Backward, from the log-sum-exp: dV =
// Pᵀ·dO, dK = dSᵀ·Q, dQᵀ = Kᵀ·dSᵀ. Probabilities and dS are rounded to bf16 for these GEMMs; sums are f32.
//
// A Unit multiplies panels:
//   Unit::begin()                                        once per task, before its GEMMs
//   Unit::multiply(steps, left, right, add, sums, ld)    sums[32, 32], rows ld apart, (+)= left·right
#include "ops/cpu/attention_operands.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

// --- forward ---

/// A panel of queries and a block of keys.
struct ForwardPanel {
  float scores[kKeyBlock * kSide];        // [key][query]
  bf16 probabilities[kKeyBlock * kSide];  // right operand, contracted over keys
  float top[kSide], denominator[kSide], shrink[kSide];
  float starts[kSide];  // first visible key of each query, in the current block
};

/// Fills starts[q] with the first key that query `row` + q sees, relative to `key`, for a panel of queries. Queries
/// beyond the last one, whose results are not stored, are like the last one. Returns true if any of these keys is
/// later than `key`, or if `row` is before it: then there may be queries that have seen no key yet.
bool fill_starts(const AttentionJob& job, int64_t sequence, int64_t row, int64_t key, float* starts) {
  const bool before = job.shift + row < key;
  if (!hides_keys(job) && !before) return false;
  const auto start_of = [&](int64_t query) {
    const int64_t first = first_key(job, sequence, smaller(query, job.q_len - 1)) - key;
    return smaller(kKeyBlock, larger(0, first));
  };
  if (start_of(row + kSide - 1) == 0 && !before) return false;
  for (int64_t q = 0; q < kSide; ++q) starts[q] = static_cast<float>(start_of(row + q));
  return true;
}

/// Online softmax over the scores of `keys` keys, in powers of 2, of whole panels, whose probabilities beyond are 0.
/// Query q of the panel sees the block's keys up to last_seen + q; with Bounded, those from starts[q] on. Returns true
/// if any query's maximum has grown.
template <bool Dropout, bool Bounded>
[[gnu::always_inline]] inline bool online_softmax_as(const AttentionJob& job, ForwardPanel& p, int64_t keys,
                                                     int64_t last_seen, const float* starts, const float* factors) {
  constexpr int64_t kWide = 2 * kVector;  // adjacent queries, whose rounded probabilities fill a vector
  const Vec<float> scale = splat(static_cast<float>(job.scale * kLog2E));
  bool grown = false;
  for (int64_t c = 0; c < kSide; c += kWide) {
    const float* const s = p.scores + c;
    // Keys below `open` are visible to all queries; a later key is visible to the queries in lanes >= key − seen.
    const int64_t seen[2] = {last_seen + c, last_seen + c + kVector};
    const int64_t open = Bounded ? 0 : smaller(keys, larger(0, seen[0] + 1)) / 2 * 2;
    const auto masked = [&](Vec<float> x, int64_t key, int half, float other) __attribute__((always_inline)) {
      if constexpr (Bounded) x = load(starts + c + half * kVector) <= splat(static_cast<float>(key)) ? x : splat(other);
      if (key >= keys) return splat(other);
      return key > seen[half] ? lanes_from(x, key - seen[half], other) : x;
    };
    Vec<float> best[2][2];
    for (auto& both : best) both[0] = both[1] = splat(-__builtin_inff());
    for (int64_t key = 0; key < open; key += 2)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        best[i % 2][i / 2] = vmax(load(s + (key + i / 2) * kSide + i % 2 * kVector), best[i % 2][i / 2]);
    for (int64_t key = open; key < keys; ++key)
      for (int half = 0; half < 2; ++half)
        best[half][0] =
            vmax(masked(load(s + key * kSide + half * kVector), key, half, -__builtin_inff()), best[half][0]);
    Vec<float> top[2], sum[2] = {};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* const kept = p.top + c + half * kVector;
      const Vec<float> old = load(kept);
      top[half] = vmax(vmax(best[half][0], best[half][1]) * scale, old);
      store(kept, top[half]);
      if constexpr (Bounded)
        top[half] = top[half] == splat(-__builtin_inff()) ? Vec<float>{} : top[half];  // no key yet
      store(p.shrink + c + half * kVector, vexp2_near(old - top[half]));
      grown = grown || any(top[half] != old);
    }
    const auto row = [&](int64_t key, auto mask) __attribute__((always_inline)) {
      Vec<float> x[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        x[half] = vexp2_near(fmadd(load(s + key * kSide + half * kVector), scale, -top[half]));
        if constexpr (decltype(mask)::value) x[half] = masked(x[half], key, half, 0.0f);
        sum[half] += x[half];
        if constexpr (Dropout) x[half] *= load(factors + key * kSide + c + half * kVector);
      }
      return round_halves(x[0], x[1]);
    };
    const auto pair = [&](int64_t key, auto mask) __attribute__((always_inline)) {
      const Halves even = row(key, mask), odd = row(key + 1, mask);
      store_halves(pair_of(p.probabilities, key / 2, c), interleave<false>(even, odd));
      store_halves(pair_of(p.probabilities, key / 2, c + kVector), interleave<true>(even, odd));
    };
    for (int64_t key = 0; key < open; key += 2) pair(key, std::false_type());
    for (int64_t key = open; key < panels_in(keys) * kSide; key += 2) pair(key, std::true_type());
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* const denominator = p.denominator + c + half * kVector;
      store(denominator, fmadd(load(denominator), load(p.shrink + c + half * kVector), sum[half]));
    }
  }
  return grown;
}
bool online_softmax(const AttentionJob& job, ForwardPanel& p, int64_t keys, int64_t last_seen, const float* factors) {
  return factors == nullptr ? online_softmax_as<false, false>(job, p, keys, last_seen, nullptr, nullptr)
                            : online_softmax_as<true, false>(job, p, keys, last_seen, nullptr, factors);
}
bool bounded_softmax(const AttentionJob& job, ForwardPanel& p, int64_t keys, int64_t last_seen, const float* starts,
                     const float* factors) {
  return factors == nullptr ? online_softmax_as<false, true>(job, p, keys, last_seen, starts, nullptr)
                            : online_softmax_as<true, true>(job, p, keys, last_seen, starts, factors);
}

/// Stores out[query, D] <- Oᵀ[D, query]·factor[query], square by square, or adds to f32.
template <typename Storage>
void store_transposed_rows(int64_t queries, int64_t d, const float* sums, const float* factor, Storage* out,
                           int64_t ld) {
  for (int64_t query = 0; query < queries; query += kVector)
    for (int64_t c = 0; c < d; c += kVector) {
      Vec<float> square[kVector];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kVector; ++i) square[i] = load(sums + (c + i) * kSide + query) * load(factor + query);
      transpose<float>(square);
      const int64_t columns = smaller(kVector, d - c);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kVector; ++i) {
        if (query + i >= queries) break;
        Storage* const to = out + (query + i) * ld + c;
        if constexpr (std::is_same_v<Storage, float>) square[i] += columns == kVector ? load(to) : load_n(to, columns);
        columns == kVector ? store(to, square[i]) : store_n(to, square[i], columns);
      }
    }
}

template <typename Unit>
void forward(const AttentionJob& job, int64_t task, int worker) {
  Unit::begin();
  // The longest rows of a head come first.
  const int64_t head_in_wave = task / job.query_blocks, slot = head_in_wave / job.group;
  const int64_t pair = job.first_pair + slot, sequence = pair / job.kv_heads;
  const int64_t head = pair % job.kv_heads * job.group + head_in_wave % job.group;
  const int64_t query = (job.query_blocks - 1 - task % job.query_blocks) * kQueryBlock;
  const int64_t row = sequence * job.q_len + query;
  const int64_t m = smaller(kQueryBlock, job.q_len - query), d = job.head_dim, ld = job.row_ld;

  std::byte* const own = job.workers + worker * job.worker_bytes;
  ForwardPanel* const panels = as<ForwardPanel>(own);
  float* const factors = reinterpret_cast<float*>(panels + kQueryPanels);  // dropout [key][query]
  float* const sums = factors + kKeyBlock * kSide;                         // Oᵀ [panel][ld][query]
  bf16* const q = reinterpret_cast<bf16*>(sums + kQueryBlock * ld);        // right operands, contracted over D

  prefetch_rows(at(job.q, row, head), job.q.ld, m, d);
  for (int64_t qp = 0; qp * kSide < m; ++qp) {
    ForwardPanel& p = panels[qp];
    pack_b_terms(at(job.q, row + qp * kSide, head), job.q.ld, m - qp * kSide, d, q + qp * kSide * ld);
    for (int64_t c = 0; c < kSide; ++c) p.top[c] = -__builtin_inff(), p.denominator[c] = 0;
    if (keys_of(job, sequence, query + qp * kSide, smaller(kSide, m - qp * kSide)).empty())
      std::memset(sums + qp * kSide * ld, 0, static_cast<size_t>(kSide * ld) * sizeof(float));
  }
  const KeyRange all = keys_of(job, sequence, query, m);
  for (int64_t key = all.begin; key < all.end; key += kKeyBlock)
    for (int64_t qp = 0; qp * kSide < m; ++qp) {
      ForwardPanel& p = panels[qp];
      const int64_t first = query + qp * kSide, rows = smaller(kSide, m - qp * kSide);
      const KeyRange range = keys_of(job, sequence, first, rows);
      if (range.end <= key || key < range.begin) continue;  // this panel attends to none of these keys
      const int64_t keys = smaller(kKeyBlock, range.end - key), last_seen = job.shift + first - key;
      for (int64_t k = 0; k < keys; k += kSide)
        Unit::multiply(ld / kTileTerms, panel_at(job.keys, slot, job.k_pad, ld, key + k), q + qp * kSide * ld, false,
                       p.scores + k * kSide, kSide);
      if (job.dropout)
        fill_dropout_square(job, sequence, head, first, key, rows, panels_in(keys) * kSide, factors, kSide);
      const float* const kept = job.dropout ? factors : nullptr;
      const bool grown = fill_starts(job, sequence, first, key, p.starts)
                             ? bounded_softmax(job, p, keys, last_seen, p.starts, kept)
                             : online_softmax(job, p, keys, last_seen, kept);
      float* const sum = sums + qp * kSide * ld;
      if (key > range.begin && grown)
        for (int64_t c = 0; c < kSide; c += kVector) {
          const Vec<float> shrink = load(p.shrink + c);
          for (int64_t r = 0; r < ld; ++r) store(sum + r * kSide + c, load(sum + r * kSide + c) * shrink);
        }
      for (int64_t c = 0; c < ld; c += kSide)
        Unit::multiply(panels_in(keys) * kSide / kTileTerms,
                       panel_at(job.values_t, slot, ld, job.k_pad, c) + key / kTileTerms * kStepElements,
                       p.probabilities, key > range.begin, sum + c * kSide, kSide);
    }
  for (int64_t qp = 0; qp * kSide < m; ++qp) {
    ForwardPanel& p = panels[qp];
    const int64_t first = row + qp * kSide, rows = smaller(kSide, m - qp * kSide);
    for (int64_t c = 0; c < kSide; c += kVector) {
      const Vec<float> denominator = load(p.denominator + c);
      store(p.shrink + c, denominator == 0.0f ? Vec<float>{} : 1.0f / denominator);  // 0: the query sees no key
    }
    store_transposed_rows(rows, d, sums + qp * kSide * ld, p.shrink, at(job.out, first, head), job.out.ld);
    if (job.lse == nullptr) continue;
    float* const lse = as<float>(job.lse) + (sequence * job.heads + head) * job.q_len + query + qp * kSide;
    for (int64_t r = 0; r < rows; ++r)
      lse[r] = static_cast<float>(kLn2 * static_cast<double>(p.top[r]) +
                                  __builtin_log(static_cast<double>(p.denominator[r])));
  }
}

// --- backward ---

/// Scores, probabilities and their gradients for a block of keys and a block of queries.
struct BackwardBlock {
  float scores[kSide * kSide], slopes[kSide * kSide];  // Sᵀ and dPᵀ of one square
  bf16 p[kKeyBlock * kQueryBlock],
      ds[kKeyBlock * kQueryBlock];         // left operands for dV, dK: [key panel][step of queries]
  bf16 ds_pairs[kKeyBlock * kQueryBlock];  // right operand for dQ: [query panel][step of keys]
  float starts[kSide];                     // first visible key of each query of the current square
};

/// Computes P and dS of one square of `keys` keys, whose query q sees those up to last_seen + q; with Bounded, those
/// from starts[q] on.
template <bool Dropout, bool Bounded>
[[gnu::always_inline]] inline void differentiate_as(const AttentionJob& job, BackwardBlock& b, int64_t key_panel,
                                                    int64_t query_panel, int64_t keys, int64_t last_seen,
                                                    const float* starts, const float* shift, const float* delta,
                                                    const float* factors) {
  constexpr int64_t kWide = 2 * kVector;
  const Vec<float> scale = splat(static_cast<float>(job.scale * kLog2E));
  bf16* const p = b.p + (key_panel * kQueryPanels + query_panel) * kStepElements;
  bf16* const ds = b.ds + (key_panel * kQueryPanels + query_panel) * kStepElements;
  bf16* const pairs = b.ds_pairs + (query_panel * kKeyPanels + key_panel) * kStepElements;
  for (int64_t c = 0; c < kSide; c += kWide) {
    const Vec<float> lse[2] = {load(shift + c), load(shift + c + kVector)},
                     mean[2] = {load(delta + c), load(delta + c + kVector)};
    const int64_t seen[2] = {last_seen + c, last_seen + c + kVector};
    const int64_t open = Bounded ? 0 : smaller(keys, larger(0, seen[0] + 1)) / 2 * 2;
    const auto row = [&](int64_t key, auto mask) __attribute__((always_inline)) {
      Vec<float> kept[2], slope[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int64_t at = key * kSide + c + half * kVector;
        const Vec<float> probability = vexp2_near(fmadd(load(b.scores + at), scale, -lse[half]));
        slope[half] = load(b.slopes + at), kept[half] = probability;
        if constexpr (Dropout) {
          const Vec<float> factor = load(factors + key * kQueryBlock + c + half * kVector);
          slope[half] *= factor;
          kept[half] *= factor;
        }
        slope[half] = probability * (slope[half] - mean[half]);
        if constexpr (Bounded) {
          const auto visible = load(starts + c + half * kVector) <= splat(static_cast<float>(key));
          kept[half] = visible ? kept[half] : Vec<float>{};
          slope[half] = visible ? slope[half] : Vec<float>{};
        }
        if constexpr (decltype(mask)::value) {
          const int64_t hidden = key >= keys ? kVector : key - seen[half];  // lanes, from the first on
          if (hidden > 0) {
            kept[half] = lanes_from(kept[half], hidden, 0.0f);
            slope[half] = lanes_from(slope[half], hidden, 0.0f);
          }
        }
      }
      const Halves rounded = round_halves(slope[0], slope[1]);
      store_halves(p + key * kTileTerms + c, round_halves(kept[0], kept[1]));
      store_halves(ds + key * kTileTerms + c, rounded);
      return rounded;
    };
    const auto pair = [&](int64_t key, auto mask) __attribute__((always_inline)) {
      const Halves even = row(key, mask), odd = row(key + 1, mask);
      store_halves(pair_of(pairs, key / 2, c), interleave<false>(even, odd));
      store_halves(pair_of(pairs, key / 2, c + kVector), interleave<true>(even, odd));
    };
    for (int64_t key = 0; key < open; key += 2) pair(key, std::false_type());
    for (int64_t key = open; key < kSide; key += 2) pair(key, std::true_type());
  }
}
void differentiate(const AttentionJob& job, BackwardBlock& b, int64_t key_panel, int64_t query_panel, int64_t keys,
                   int64_t last_seen, const float* shift, const float* delta, const float* factors) {
  factors == nullptr
      ? differentiate_as<false, false>(job, b, key_panel, query_panel, keys, last_seen, nullptr, shift, delta, nullptr)
      : differentiate_as<true, false>(job, b, key_panel, query_panel, keys, last_seen, nullptr, shift, delta, factors);
}
void differentiate_bounded(const AttentionJob& job, BackwardBlock& b, int64_t key_panel, int64_t query_panel,
                           int64_t keys, int64_t last_seen, const float* starts, const float* shift, const float* delta,
                           const float* factors) {
  factors == nullptr
      ? differentiate_as<false, true>(job, b, key_panel, query_panel, keys, last_seen, starts, shift, delta, nullptr)
      : differentiate_as<true, true>(job, b, key_panel, query_panel, keys, last_seen, starts, shift, delta, factors);
}

template <typename Unit>
void backward(const AttentionJob& job, int64_t task, int worker) {
  Unit::begin();
  // Without a window, the first chunk has the most queries.
  const int64_t chunk = task % job.chunks, slot = task / job.chunks;
  const int64_t pair = job.first_pair + slot, sequence = pair / job.kv_heads, kv_head = pair % job.kv_heads;
  const int64_t head = kv_head * job.group + job.head_in_group;
  const int64_t begin = chunk * job.chunk_keys, end = smaller(job.k_len, begin + job.chunk_keys);
  const int64_t d = job.head_dim, ld = job.row_ld, steps = ld / kTileTerms;

  BackwardBlock& b = *as<BackwardBlock>(job.workers + worker * job.worker_bytes);
  float* const factors = reinterpret_cast<float*>(&b + 1);  // dropout [key][query]
  float* const dk = as<float>(job.dk_sum) + (slot * job.k_pad + begin) * ld;
  float* const dv = as<float>(job.dv_sum) + (slot * job.k_pad + begin) * ld;
  KeySums<float> key_sums{dk, dv, ld, begin, job.head_in_group == 0 ? begin : end};

  const int64_t last = queries_before(job, sequence, end);
  for (int64_t query = first_queries(job, begin); query < last; query += kQueryBlock) {
    const int64_t m = smaller(kQueryBlock, job.q_len - query), position = job.shift + query;
    const KeyRange range = keys_of(job, sequence, query, m);
    const int64_t start = larger(begin, range.begin);
    const float* const shift = as<float>(job.shifts) + slot * job.q_pad + query;
    const float* const delta = as<float>(job.deltas) + slot * job.q_pad + query;
    float* const dq = as<float>(job.dq_parts) + ((slot * job.chunks + chunk) * job.q_pad + query) * ld;
    for (int64_t key = start; key < smaller(end, range.end); key += kKeyBlock) {
      const int64_t key_panels = panels_in(smaller(kKeyBlock, end - key));
      if (job.dropout)
        fill_dropout_square(job, sequence, head, query, key, m, key_panels * kSide, factors, kQueryBlock);
      for (int64_t kp = 0; kp < key_panels; ++kp)
        for (int64_t qp = 0; qp < kQueryPanels; ++qp) {
          const int64_t k = key + kp * kSide, q = query + qp * kSide;
          const int64_t keys = smaller(kSide, end - k), last_seen = job.shift + q - k;
          if (last_seen + kSide <= 0) continue;  // visible to no query
          Unit::multiply(steps, panel_at(job.keys, slot, job.k_pad, ld, k),
                         panel_at(job.queries_t, slot, job.q_pad, ld, q), false, b.scores, kSide);
          Unit::multiply(steps, panel_at(job.values, slot, job.k_pad, ld, k),
                         panel_at(job.douts_t, slot, job.q_pad, ld, q), false, b.slopes, kSide);
          const float* const kept = job.dropout ? factors + kp * kSide * kQueryBlock + qp * kSide : nullptr;
          if (fill_starts(job, sequence, q, k, b.starts)) {
            differentiate_bounded(job, b, kp, qp, keys, last_seen, b.starts, shift + qp * kSide, delta + qp * kSide,
                                  kept);
          } else {
            differentiate(job, b, kp, qp, keys, last_seen, shift + qp * kSide, delta + qp * kSide, kept);
          }
        }
      const bool begins = key_sums.begins(key, smaller(end, key + kKeyBlock));
      for (int64_t kp = 0; kp < key_panels; ++kp) {
        const int64_t k = key + kp * kSide;
        const int64_t hidden = smaller(kQueryPanels, larger(0, k - position) / kSide);  // panels of queries
        const int64_t from = kp * kQueryPanels + hidden;
        for (int64_t c = 0; c < ld; c += kSide) {
          const int64_t block = query * ld + c * kQueryBlock + hidden * kStepElements, sums = (k - begin) * ld + c;
          Unit::multiply(kQueryPanels - hidden, b.p + from * kStepElements,
                         panel_at(job.douts, slot, job.q_pad, ld, 0) + block, !begins, dv + sums, ld);
          Unit::multiply(kQueryPanels - hidden, b.ds + from * kStepElements,
                         panel_at(job.queries, slot, job.q_pad, ld, 0) + block, !begins, dk + sums, ld);
        }
      }
      for (int64_t qp = 0; qp < kQueryPanels; ++qp) {
        const int64_t seen = smaller(key_panels, panels_in(larger(0, position + (qp + 1) * kSide - key)));
        for (int64_t c = 0; c < ld; c += kSide)
          Unit::multiply(seen, panel_at(job.keys_t, slot, ld, job.k_pad, c) + key / kTileTerms * kStepElements,
                         b.ds_pairs + qp * kKeyPanels * kStepElements, key > start, dq + (qp * ld + c) * kSide, kSide);
      }
    }
  }
  key_sums.begins(end, end);
  if (job.head_in_group + 1 == job.group) {
    const int64_t row = sequence * job.key_rows + begin;
    for (int64_t r = 0; r < end - begin; ++r) {
      store_gradient<bf16>(dk + r * ld, d, static_cast<float>(job.scale), job.dk, row + r, kv_head, job.add_dkv);
      store_gradient<bf16>(dv + r * ld, d, 1.0f, job.dv, row + r, kv_head, job.add_dkv);
    }
  }
}

/// Computes dq for a block of queries by adding its parts, [query panel][ld][query], in order.
void sum_dq(const AttentionJob& job, int64_t task) {
  const int64_t slot = task / job.query_blocks, query = task % job.query_blocks * kQueryBlock, ld = job.row_ld;
  const int64_t m = smaller(kQueryBlock, job.q_len - query), pair = job.first_pair + slot;
  const int64_t head = pair % job.kv_heads * job.group + job.head_in_group;
  float* const parts = as<float>(job.dq_parts) + (slot * job.chunks * job.q_pad + query) * ld;
  const KeyRange range = keys_of(job, pair / job.kv_heads, query, m);
  const int64_t start = range.begin / job.chunk_keys;  // the first that was computed
  float* const sum = parts + start * job.q_pad * ld;
  if (range.empty()) std::memset(sum, 0, static_cast<size_t>(kQueryBlock * ld) * sizeof(float));
  for (int64_t chunk = start + 1; chunk * job.chunk_keys < range.end; ++chunk) {
    const float* const part = parts + chunk * job.q_pad * ld;
    for (int64_t i = 0; i < kQueryBlock * ld; i += kVector) store(sum + i, load(sum + i) + load(part + i));
  }
  alignas(64) float scale[kSide];
  for (float& factor : scale) factor = static_cast<float>(job.scale);
  const auto store_all = [&](auto* out) {
    for (int64_t r = 0; r < m; r += kSide)
      store_transposed_rows(smaller(kSide, m - r), job.head_dim, sum + r * ld, scale, out + r * job.dq.ld, job.dq.ld);
  };
  const int64_t row = pair / job.kv_heads * job.q_len + query;
  job.add_dq ? store_all(at<float>(job.dq, row, head)) : store_all(at(job.dq, row, head));
}

int64_t worker_bytes(int64_t row_ld, bool is_backward) {
  const int64_t f32 = sizeof(float);
  if (is_backward) return static_cast<int64_t>(sizeof(BackwardBlock)) + kKeyBlock * kQueryBlock * f32;
  return kQueryPanels * static_cast<int64_t>(sizeof(ForwardPanel)) + kKeyBlock * kSide * f32 +
         kQueryBlock * row_ld * (f32 + static_cast<int64_t>(sizeof(bf16)));
}

template <typename Unit>
constexpr AttentionKernels attention_by() {
  return {.pack = pack_keys,
          .pack_queries = pack_queries,
          .forward = forward<Unit>,
          .backward = backward<Unit>,
          .sum_dq = sum_dq,
          .worker_bytes = worker_bytes};
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
