// Attention kernels: blocks of kQueryBlock × kKeyBlock scores, online softmax (Dao et al. 2022), backward pass from the
// log-sum-exp. Storage is the element type in memory, T the type of packed operands, scores and sums.
#include "ops/cpu/attention_block.h"
#include "ops/cpu/attention_dropout.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_mask.h"
#include "ops/cpu/attention_rows.h"
#include "ops/cpu/math.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Returns x, with `other` in lanes n and above.
template <typename T>
[[gnu::always_inline]] inline Vec<T> first_lanes(Vec<T> x, int64_t n, T other) {
  Vec<T> lane{};
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = static_cast<T>(i);
  return lane < splat(static_cast<T>(n)) ? x : splat(other);
}
/// Returns the largest of start and x[0 … n). Reads whole vectors.
template <typename T>
[[gnu::always_inline]] inline T vector_max(const T* x, int64_t n, T start) {
  Vec<T> best[4] = {splat(start), splat(start), splat(start), splat(start)};
  int64_t i = 0;
  for (; i + 4 * kLanes<T> <= n; i += 4 * kLanes<T>)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) best[v] = vmax(best[v], load(x + i + v * kLanes<T>));
  for (; i + kLanes<T> <= n; i += kLanes<T>) best[0] = vmax(best[0], load(x + i));
  if (i < n) best[1] = vmax(best[1], first_lanes(load(x + i), n - i, start));
  return lane_max<T>(vmax(vmax(best[0], best[1]), vmax(best[2], best[3])));
}
/// Computes x[i] <- exp(x[i] − shift) and returns the sum. Reads and writes whole vectors; lanes beyond n become 0.
template <typename T>
[[gnu::always_inline]] inline T exp_and_sum(T* x, int64_t n, T shift) {
  Vec<T> sum{};
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    Vec<T> p = vexp(load(x + i) - shift);
    if (i + kLanes < T >> n) p = first_lanes(p, n - i, T{0});
    store(x + i, p);
    sum += p;
  }
  return lane_sum<T>(sum);
}
/// Clears the part of a row that GEMMs read beyond the visible keys.
template <typename T>
[[gnu::always_inline]] inline void clear_unseen(T* p, int64_t visible, int64_t n) {
  for (int64_t c = visible; c < smaller(n, visible + kRegisterRows); ++c) p[c] = 0;
}

/// Clears p[0 … hidden), the keys before a row's first visible one.
template <typename T>
[[gnu::always_inline]] inline void clear_hidden(T* p, int64_t hidden) {
  for (int64_t c = 0; c < hidden; ++c) p[c] = 0;
}

/// Returns the factor that makes a weighted mean of a weighted sum: 0 without keys.
template <typename T>
[[gnu::always_inline]] inline T inverse_of(T denominator) {
  return denominator == 0 ? T{0} : 1 / denominator;
}

/// Number of queries whose scores are computed, weighted and summed together, so that the scores stay in L1.
inline constexpr int64_t kStrip = 24;

/// The pair and the query head that a task of the wave processes.
struct HeadTask {
  int64_t slot, sequence, kv_head, head;
};
[[gnu::always_inline]] inline HeadTask head_task(const AttentionJob& job, int64_t slot, int64_t head_in_group) {
  const int64_t pair = job.first_pair + slot, kv_head = pair % job.kv_heads;
  return {slot, pair / job.kv_heads, kv_head, kv_head * job.group + head_in_group};
}

template <typename T>
[[gnu::always_inline]] inline Panels<T> panels_of(const AttentionJob& job, std::byte* packed, int64_t slot,
                                                  int64_t key) {
  return {as<T>(packed) + (slot * job.k_pad + key) * job.head_dim, job.head_dim * kPanel<T>, kPanel<T>};
}
template <typename T>
[[gnu::always_inline]] inline T* rows_of(const AttentionJob& job, std::byte* packed, int64_t slot, int64_t key) {
  return as<T>(packed) + (slot * job.k_pad + key) * job.row_ld;
}
template <typename T>
[[gnu::always_inline]] inline Panels<T> columns_of(const AttentionJob& job, const T* rows) {
  return {rows, kPanel<T>, job.row_ld};
}
template <typename T>
[[gnu::always_inline]] inline T* part_of(const AttentionJob& job, int64_t slot, int64_t chunk, int64_t row) {
  return as<T>(job.dq_parts) + ((slot * job.chunks + chunk) * job.q_pad + row) * job.row_ld;
}

template <typename Storage, typename T>
void pack(const AttentionJob& job, int64_t task) {
  const HeadTask at_pair = head_task(job, task / job.key_blocks, 0);
  const int64_t key = task % job.key_blocks * kKeyBlock, n = smaller(kKeyBlock, job.k_len - key);
  const int64_t row = at_pair.sequence * job.key_rows + key, d = job.head_dim;
  const Storage* k = at<Storage>(job.k, row, at_pair.kv_head);
  const Storage* v = at<Storage>(job.v, row, at_pair.kv_head);
  T* keys_t = as<T>(job.keys_t) + (at_pair.slot * job.k_pad + key) * d;
  pack_transposed(n, d, k, job.k.ld, keys_t);
  if (job.backward) {
    pack_transposed(n, d, v, job.v.ld, as<T>(job.values_t) + (at_pair.slot * job.k_pad + key) * d);
    pack_rows(n, d, k, job.k.ld, T{1}, rows_of<T>(job, job.keys, at_pair.slot, key), job.row_ld);
  } else {
    pack_rows(n, d, v, job.v.ld, T{1}, rows_of<T>(job, job.values, at_pair.slot, key), job.row_ld);
  }
}

template <typename Storage, typename T>
void forward(const AttentionJob& job, int64_t task, int worker) {
  // The longest rows of a head come first.
  const int64_t head_in_wave = task / job.query_blocks;
  const HeadTask where = head_task(job, head_in_wave / job.group, head_in_wave % job.group);
  const int64_t query = (job.query_blocks - 1 - task % job.query_blocks) * kQueryBlock;
  const int64_t m = smaller(kQueryBlock, job.q_len - query), d = job.head_dim, ld = job.row_ld;
  const int64_t position = job.shift + query;  // the key at the position of row 0

  T* q = as<T>(job.workers + worker * job.worker_bytes);
  T* sums = q + kQueryBlock * ld;
  T* s = sums + kQueryBlock * ld;
  T* top = s + kQueryBlock * kScoreLd;
  T* denominator = top + kQueryBlock;
  T* shrink = denominator + kQueryBlock;

  const int64_t row = where.sequence * job.q_len + query;
  pack_rows(m, d, at<const Storage>(job.q, row, where.head), job.q.ld, static_cast<T>(job.scale), q, ld);
  for (int64_t r = 0; r < kQueryBlock; ++r) {
    top[r] = -__builtin_inf();
    denominator[r] = 0;
  }
  const bool hides = hides_keys(job) || position < 0;
  const KeyRange range = keys_of(job, where.sequence, query, m);
  int64_t first_keys[kQueryBlock];
  if (hides) {  // a strip may see none of the first keys, or none at all, so that sums begin at zero
    for (int64_t r = 0; r < m; ++r) first_keys[r] = first_key(job, where.sequence, query + r);
    for (int64_t i = 0; i < m * ld; i += kLanes<T>) store(sums + i, Vec<T>{});
  }
  for (int64_t key = range.begin; key < range.end; key += kKeyBlock) {
    const int64_t n = smaller(kKeyBlock, job.k_len - key), first = position + 1 - key;
    const Panels<T> keys = panels_of<T>(job, job.keys_t, where.slot, key);
    const Panels<T> values = columns_of(job, rows_of<T>(job, job.values, where.slot, key));
    for (int64_t strip = 0; strip < m; strip += kStrip) {
      const int64_t rows = smaller(kStrip, m - strip);
      if (hides && first_keys[strip] >= key + n) continue;  // this strip attends to none of these keys
      const bool bounded = hides && (first_keys[strip + rows - 1] > key || first + strip <= 0);
      multiply_scores(rows, n, d, q + strip * ld, ld, keys, s, kScoreLd, first + strip);
      const int64_t end = smaller(kQueryBlock, strip + kStrip);
      for (int64_t r = strip; r < end; ++r) shrink[r] = top[r];
      for (int64_t r = strip; r < strip + rows && bounded; ++r)
        for (int64_t c = 0; c < smaller(n, first_keys[r] - key); ++c) s[(r - strip) * kScoreLd + c] = -__builtin_inf();
      for (int64_t r = strip; r < strip + rows; ++r)
        top[r] = vector_max(s + (r - strip) * kScoreLd, smaller(n, first + r), top[r]);
      for (int64_t r = strip; r < end; r += kLanes<T>) store(shrink + r, vexp(load(shrink + r) - load(top + r)));
      for (int64_t r = strip; r < strip + rows && bounded; ++r)
        if (top[r] == -__builtin_inf()) shrink[r] = 1;  // the row has seen no key yet
      for (int64_t r = strip; r < strip + rows; ++r) {
        const int64_t visible = larger(0, smaller(n, first + r));
        T* p = s + (r - strip) * kScoreLd;
        const T shift = bounded && top[r] == -__builtin_inf() ? T{0} : top[r];
        denominator[r] = denominator[r] * shrink[r] + exp_and_sum(p, visible, shift);
        if (job.dropout) {
          T factors[kKeyBlock + kPanel<T>];
          fill_dropout_factors(job,
                               dropout_index(job, where.sequence, where.head, query + r) + static_cast<uint64_t>(key),
                               visible, factors);
          for (int64_t c = 0; c < visible; ++c) p[c] *= factors[c];
        }
        clear_unseen(p, visible, n);
        if ((key > range.begin || hides) && shrink[r] != 1)
          for (int64_t c = 0; c < d; c += kLanes<T>) store(sums + r * ld + c, load(sums + r * ld + c) * shrink[r]);
      }
      if (key == range.begin && !hides) {
        weighted_rows<false>(rows, n, d, s, kScoreLd, values, sums + strip * ld, ld, first + strip);
      } else {
        weighted_rows<true>(rows, n, d, s, kScoreLd, values, sums + strip * ld, ld, first + strip);
      }
    }
  }
  for (int64_t r = 0; r < m; ++r)
    store_row(sums + r * ld, d, inverse_of(denominator[r]), at<Storage>(job.out, row + r, where.head));
  if (job.lse != nullptr) {
    T* lse = as<T>(job.lse) + (where.sequence * job.heads + where.head) * job.q_len + query;
    for (int64_t r = 0; r < m; ++r)
      lse[r] = top[r] + static_cast<T>(__builtin_log(static_cast<double>(denominator[r])));
  }
}

constexpr int64_t kKeysAhead = 32;  // distance of prefetching while decoding, in rows of keys or values

/// Computes NV vectors of columns of out = factor·Σ_j p[j]·v[j] in one pass over the rows of v.
template <int NV, typename Storage, typename T>
[[gnu::always_inline]] inline void weighted_sum(int64_t keys, const T* p, const Storage* v, int64_t ldv,
                                                int64_t columns, T factor, Storage* out) {
  Vec<T> sum[NV] = {};
  const bool whole = columns >= NV * kLanes<T>;
  for (int64_t j = 0; j < keys; ++j, v += ldv) {
    if (j + kKeysAhead < keys) prefetch_row(v + kKeysAhead * ldv, smaller(NV * kLanes<T>, columns));
#pragma GCC unroll 4
    for (int i = 0; i < NV; ++i)
      sum[i] = fmadd(splat(p[j]), whole ? load(v + i * kLanes<T>) : load_n(v + i * kLanes<T>, columns), sum[i]);
  }
  for (int i = 0; i < NV; ++i) {
    if (whole) {
      store(out + i * kLanes<T>, sum[i] * factor);
    } else {
      store_n(out, sum[i] * factor, columns);
    }
  }
}

/// s[i] = q·(row i of k) for N rows, whose loads and sums overlap.
template <int N, typename Storage, typename T>
[[gnu::always_inline]] inline void dots(int64_t d, const T* q, const Storage* k, int64_t ldk, T* s) {
  Vec<T> sum[N] = {};
  int64_t c = 0;
  for (; c + kLanes<T> <= d; c += kLanes<T>) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) sum[i] = fmadd(load(q + c), load(k + i * ldk + c), sum[i]);
  }
  if (c < d)
    for (int i = 0; i < N; ++i) sum[i] = fmadd(load(q + c), load_n(k + i * ldk + c, d - c), sum[i]);
  lane_sums<N, T>(sum, s);
}

template <typename Storage, typename T>
void decode(const AttentionJob& job, int64_t task, int worker) {
  const int64_t sequence = task / job.heads, head = task % job.heads, kv_head = head / job.group, d = job.head_dim;
  T* q = as<T>(job.workers + worker * job.worker_bytes);
  T* s = q + job.row_ld;
  for (int64_t r = 0; r < job.q_len; ++r) {
    const int64_t row = sequence * job.q_len + r, end = larger(0, smaller(job.k_len, job.shift + r + 1));
    const int64_t start = smaller(first_key(job, sequence, r), end), visible = end - start;
    const int64_t key_row = sequence * job.key_rows + start;
    pack_rows(1, d, at<const Storage>(job.q, row, head), job.q.ld, static_cast<T>(job.scale), q, job.row_ld);
    const Storage* k = at<const Storage>(job.k, key_row, kv_head);
    const Storage* v = at<const Storage>(job.v, key_row, kv_head);
    int64_t j = 0;
    for (; j + 4 <= visible; j += 4) {
      for (int64_t next = j + kKeysAhead; next < j + kKeysAhead + 4; ++next) {  // the values follow the keys
        if (next < visible) {
          prefetch_row(k + next * job.k.ld, d);
        } else if (next < 2 * visible) {
          prefetch_row(v + (next - visible) * job.v.ld, d);
        }
      }
      dots<4>(d, q, k + j * job.k.ld, job.k.ld, s + j);
    }
    for (; j < visible; ++j) dots<1>(d, q, k + j * job.k.ld, job.k.ld, s + j);
    const T top = vector_max(s, visible, static_cast<T>(-__builtin_inf()));
    const T denominator = exp_and_sum(s, visible, top), factor = inverse_of(denominator);
    Storage* out = at<Storage>(job.out, row, head);
    int64_t c = 0;
    for (; c + 4 * kLanes<T> <= d; c += 4 * kLanes<T>)
      weighted_sum<4>(visible, s, v + c, job.v.ld, d - c, factor, out + c);
    for (; c < d; c += kLanes<T>) weighted_sum<1>(visible, s, v + c, job.v.ld, d - c, factor, out + c);
    if (job.lse != nullptr)
      as<T>(job.lse)[(sequence * job.heads + head) * job.q_len + r] =
          top + static_cast<T>(__builtin_log(static_cast<double>(denominator)));
  }
}

template <typename Storage, typename T>
void backward(const AttentionJob& job, int64_t task, int worker) {
  const int64_t chunk = task % job.chunks;  // without a window, the first chunk has the most queries
  const HeadTask where = head_task(job, task / job.chunks, job.head_in_group);
  const int64_t begin = chunk * job.chunk_keys, end = smaller(job.k_len, begin + job.chunk_keys);
  const int64_t d = job.head_dim, ld = job.row_ld;

  T* q = as<T>(job.workers + worker * job.worker_bytes);
  T* dout = q + kQueryBlock * ld;
  T* p = dout + kQueryBlock * ld;
  T* ds = p + kQueryBlock * kScoreLd;
  T* delta = ds + kQueryBlock * kScoreLd;

  KeySums<T> sums{rows_of<T>(job, job.dk_sum, where.slot, begin), rows_of<T>(job, job.dv_sum, where.slot, begin), ld,
                  begin, job.head_in_group == 0 ? begin : end};
  const bool hides = hides_keys(job);
  const int64_t last = queries_before(job, where.sequence, end);
  for (int64_t query = first_queries(job, begin); query < last; query += kQueryBlock) {
    const int64_t m = smaller(kQueryBlock, job.q_len - query), row = where.sequence * job.q_len + query;
    const KeyRange range = keys_of(job, where.sequence, query, m);
    const int64_t start = larger(begin, range.begin);
    pack_rows(m, d, at<const Storage>(job.q, row, where.head), job.q.ld, static_cast<T>(job.scale), q, ld);
    pack_rows(m, d, at<const Storage>(job.dout, row, where.head), job.dout.ld, T{1}, dout, ld);
    for (int64_t r = 0; r < m; ++r) {
      const Storage* out_row = at<const Storage>(job.out, row + r, where.head);
      if (r + kRowsAhead < m) prefetch_row(out_row + kRowsAhead * job.out.ld, d);
      delta[r] = sum_of<T>(d, [&](int64_t c, auto tag) { return get(out_row + c, tag) * load(dout + r * ld + c); });
    }
    const T* lse = as<const T>(job.lse) + (where.sequence * job.heads + where.head) * job.q_len + query;
    T* dq = part_of<T>(job, where.slot, chunk, query);

    for (int64_t key = start; key < smaller(end, range.end); key += kKeyBlock) {
      const int64_t n = smaller(kKeyBlock, end - key), first = job.shift + query + 1 - key;
      multiply_scores(m, n, d, q, ld, panels_of<T>(job, job.keys_t, where.slot, key), p, kScoreLd, first);
      multiply_scores(m, n, d, dout, ld, panels_of<T>(job, job.values_t, where.slot, key), ds, kScoreLd, first);
      for (int64_t r = 0; r < m; ++r) {
        const int64_t visible = larger(0, smaller(n, first + r));
        T *pr = p + r * kScoreLd, *dsr = ds + r * kScoreLd;
        if (job.dropout) {
          T factors[kKeyBlock + kPanel<T>];
          fill_dropout_factors(job,
                               dropout_index(job, where.sequence, where.head, query + r) + static_cast<uint64_t>(key),
                               visible, factors);
          for (int64_t c = 0; c < visible; c += kLanes<T>) {
            const Vec<T> probability = vexp(load(pr + c) - lse[r]), factor = load(factors + c);
            store(dsr + c, probability * (load(dsr + c) * factor - delta[r]));
            store(pr + c, probability * factor);
          }
        } else {
          for (int64_t c = 0; c < visible; c += kLanes<T>) {
            const Vec<T> probability = vexp(load(pr + c) - lse[r]);
            store(dsr + c, probability * (load(dsr + c) - delta[r]));
            store(pr + c, probability);
          }
        }
        clear_unseen(pr, visible, n);
        clear_unseen(dsr, visible, n);
        if (!hides) continue;
        const int64_t hidden = smaller(n, first_key(job, where.sequence, query + r) - key);
        clear_hidden(pr, hidden);
        clear_hidden(dsr, hidden);
      }
      T* dk_rows = sums.dk + (key - begin) * ld;
      T* dv_rows = sums.dv + (key - begin) * ld;
      const Panels<T> q_panels = columns_of<T>(job, q), dout_panels = columns_of<T>(job, dout);
      const Panels<T> k_panels = columns_of(job, rows_of<T>(job, job.keys, where.slot, key));
      if (sums.begins(key, key + n)) {
        transposed_product<false>(m, n, d, p, kScoreLd, dout_panels, dv_rows, ld, first);
        transposed_product<false>(m, n, d, ds, kScoreLd, q_panels, dk_rows, ld, first);
      } else {
        transposed_product<true>(m, n, d, p, kScoreLd, dout_panels, dv_rows, ld, first);
        transposed_product<true>(m, n, d, ds, kScoreLd, q_panels, dk_rows, ld, first);
      }
      if (key == start) {
        weighted_rows<false>(m, n, d, ds, kScoreLd, k_panels, dq, ld, first);
      } else {
        weighted_rows<true>(m, n, d, ds, kScoreLd, k_panels, dq, ld, first);
      }
    }
  }
  sums.begins(end, end);
  if (job.head_in_group + 1 == job.group) {
    const int64_t row = where.sequence * job.key_rows + begin;
    for (int64_t r = 0; r < end - begin; ++r) {
      store_gradient<Storage>(sums.dk + r * ld, d, T{1}, job.dk, row + r, where.kv_head, job.add_dkv);
      store_gradient<Storage>(sums.dv + r * ld, d, T{1}, job.dv, row + r, where.kv_head, job.add_dkv);
    }
  }
}

template <typename Storage, typename T>
void sum_dq(const AttentionJob& job, int64_t task) {
  const HeadTask where = head_task(job, task / job.query_blocks, job.head_in_group);
  const int64_t query = task % job.query_blocks * kQueryBlock, m = smaller(kQueryBlock, job.q_len - query);
  const KeyRange range = keys_of(job, where.sequence, query, m);
  const int64_t start = range.begin / job.chunk_keys;  // the first chunk that was computed
  for (int64_t r = 0; r < m; ++r) {
    T* sum = part_of<T>(job, where.slot, start, query + r);
    if (range.empty()) std::memset(sum, 0, static_cast<size_t>(job.row_ld) * sizeof(T));
    for (int64_t chunk = start + 1; chunk * job.chunk_keys < range.end; ++chunk) {
      const T* part = part_of<T>(job, where.slot, chunk, query + r);
      for (int64_t c = 0; c < job.head_dim; c += kLanes<T>) store(sum + c, load(sum + c) + load(part + c));
    }
    store_gradient<Storage>(sum, job.head_dim, static_cast<T>(job.scale), job.dq,
                            where.sequence * job.q_len + query + r, where.head, job.add_dq);
  }
}

template <typename T>
int64_t worker_bytes(int64_t row_ld, bool is_backward) {
  const int64_t blocks = is_backward ? 2 : 1;
  return kQueryBlock * (2 * row_ld + blocks * kScoreLd + 3) * static_cast<int64_t>(sizeof(T));
}

template <typename Storage, typename T>
inline constexpr AttentionKernels kKernels = {.pack = pack<Storage, T>,
                                              .forward = forward<Storage, T>,
                                              .decode = decode<Storage, T>,
                                              .backward = backward<Storage, T>,
                                              .sum_dq = sum_dq<Storage, T>,
                                              .worker_bytes = worker_bytes<T>};

}  // namespace

const AttentionKernels& attention_kernels(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return kKernels<double, double>;
    case DType::f32:
      return kKernels<float, float>;
    default:
      return kKernels<bf16, float>;
  }
}

}  // namespace trainer::ops::TRAINER_ISA
