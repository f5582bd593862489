#pragma once
// Causal grouped-query attention without the s×s matrix (online softmax; Dao et al. 2022). Head h of A query heads uses
// key/value head h / (A/K). Row i of a sequence's queries is at position first_query + i, row j of its keys at
// first_key + j. A query attends to the keys from its first visible one, the first key unless there is an
// AttentionMask, to its position. Queries and keys may be any runs of positions: a query that sees no key has out = 0
// and a log-sum-exp of -infinity, and contributes nothing to gradients.
#include <algorithm>

#include "base/philox.h"
#include "tensor/exec.h"

namespace trainer::ops {

struct AttentionShape {
  int64_t batch = 0, q_len = 0, k_len = 0;  // per sequence; training: q_len = k_len = S
  int64_t k_capacity = 0;                   // rows of a head per sequence in k and v; 0 = k_len (KV cache: seq_len)
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool by_head = false;  // forward on CPUs only: k and v are [b·K·k_capacity, D], each head's rows in one piece
  /// Positions in the sequence of the first query and the first key.
  int64_t first_query = 0, first_key = 0;
  int64_t length = 0;  // tokens of the whole sequence, for the index of dropout; 0: first_query + q_len
  /// Returns the number of keys before the one at the first query's position; negative if that is before all keys.
  int64_t earlier() const { return first_query - first_key; }
  /// Returns the number of keys that any query sees: those up to the last query's position.
  int64_t seen() const { return std::clamp<int64_t>(earlier() + q_len, 0, k_len); }
  /// Returns the rows of a head per sequence in k and v.
  int64_t capacity() const { return k_capacity == 0 ? k_len : k_capacity; }
};

/// Hides keys that are too old or of another document. The first visible key of a row is the larger of the two bounds;
/// it must not decrease from one row of a sequence to the next.
struct AttentionMask {
  int64_t window = 0;  // a row sees at most this many keys, its own included; 0: no limit
  Tensor first;        // i32 [batch·q_len]: a row sees no key before this position; empty: no bound
  bool hides() const { return window > 0 || static_cast<bool>(first); }
};

/// Dropout on the probabilities: element (sample, head, query, key) has index ((first_sample + b)·heads_global +
/// first_head + h)·S·S + q·S + k, S = length, q and k positions in the sequence.
struct AttentionDropout {
  double p = 0;
  PhiloxKey key{0, 0};
  uint32_t step = 0;
  int64_t first_sample = 0, first_head = 0, heads_global = 0;
};

/// out = softmax(scale·q·kᵀ + causal)·v. q [b·q_len, A·D], k, v [(b − 1)·k_capacity + k_len or more rows, K·D] (column
/// ranges allowed) unless by_head, out [b·q_len, A·D]. lse [b·A, q_len], accumulator dtype: log-sum-exp of the scaled
/// scores; empty: not stored.
struct AttentionForward {
  Tensor q, k, v, out, lse;
  AttentionShape shape;
  double scale = 1;
  AttentionDropout dropout;
  AttentionMask mask;
};
void run(Exec& ex, const AttentionForward& op);
/// Counts the FLOPs of the pairs within the window: of the causal part (half the square, including the diagonal) if
/// there is none. The bound by documents is not known to costs.
Cost cost(const AttentionForward& op);

/// dq, dk, dv (column ranges allowed; may not alias q, k, v) from dout and the forward pass, with lse. out and lse are
/// those of all keys of the sequence, of which this call may have a part: then its dq is a part of the sum.
struct AttentionBackward : AttentionForward {
  Tensor dout, dq, dk, dv;
  bool add_dq = false, add_dkv = false;  // dq; dk and dv: have the accumulator type, and are added to
};
void run(Exec& ex, const AttentionBackward& op);
Cost cost(const AttentionBackward& op);

/// Returns cuDNN for this GPU, to be used as its device's Libraries::attention. It supports bf16 without dropout and
/// masks, in training where the last query is at the last key or all queries see all keys (what it adds to sums is
/// rounded to bf16 before); the built-in kernels handle all other cases. Both store
/// log-sum-exps in the same form, so either backward pass may follow the other's forward pass. They also handle passes
/// for which cuDNN would need more than 1/16 of the GPU's memory as workspace. `deterministic`: its backward pass adds
/// in a fixed order. Throws Code::usage with the reason if cuDNN was not found at build time, or is not found now.
std::unique_ptr<device::Library> cudnn_attention(const device::cuda::Facts& gpu, bool deterministic);
/// Returns the name of the attention kernels, for logs: "built-in kernels", "cuDNN 9.19.0".
std::string attention_path(const device::Device& device);

}  // namespace trainer::ops
