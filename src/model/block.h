#pragma once
// One transformer block.
// norm_place = pre:   x1 = x + drop(attention(norm1(x))·Wo);  x2 = x1 + drop(mlp(norm2(x1)))
// norm_place = post:  x1 = x + drop(norm1(attention(x)·Wo));  x2 = x1 + drop(norm2(mlp(x1)))
// With qk_norm, queries and keys pass through RMS norms before RoPE: of each head, or of all heads together.
// GPT-2: gelu(b·Wup)·Wdown.  Llama: (silu(b·Wgate) ∘ (b·Wup))·Wdown, rotary positions, RMS norms.
#include <memory>
#include <span>

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "parallel/strategy.h"

namespace trainer::model {

/// The keys and values of one sequence so far, for generation: [capacity, local K·D] on a GPU. On a CPU each head's
/// rows are in one piece, [local K·capacity, D], which decoding reads as long streams.
struct KvCache {
  Tensor keys, values;
  int64_t capacity = 0;  // in rows
  bool by_head = false;
};

struct BlockSpec {
  int layer = 0, group = 0;
  int64_t layers = 0;   // in the whole model: residual projections are initialized with init_std/√(2·layers)
  config::Model model;  // resolved: all derived values are set
  uint64_t seed = 0;    // seed of dropout
};

class Block {
 public:
  /// Activations saved for backward. Members that recomputation rebuilds are empty.
  struct Saved {
    Scratch x;  // [n, H] input; n, H: this rank's part of the residual stream
    parallel::NormStats stats1;
    Scratch a;    // [n, H] norm1(x), rebuilt under `selective`; post-norm: norm1's input
    Scratch qkv;  // [N, (A+2K)·D] of this rank's sequences and heads; rotated in place unless qk_norm is set
    parallel::NormStats q_stats, k_stats;
    Scratch qk;       // [N, (A+K)·D] with qk_norm: normed and rotated; rebuilt under `selective`
    Scratch context;  // [N, A·D]
    Scratch lse;      // [b·A, S] accumulator type; b, N, A, K, F: this rank's
    Scratch x1;       // [n, H] after attention
    parallel::NormStats stats2;
    Scratch b;    // [n, H] norm2(x1), rebuilt under `selective`; post-norm: norm2's input
    Scratch pre;  // [N, F] gelu's input, or [N, 2F] gate ‖ up
    Scratch z;    // [N, F] input of the down projection; rebuilt under `selective`
  };

  Block(const BlockSpec& spec, parallel::Strategy& strategy, config::Recompute recompute);

  /// Maps x [n, H] to [n, H] and fills `saved` for the backward pass.
  Scratch forward(Exec& ex, const parallel::Batch& batch, Scratch x, Saved& saved);
  /// Runs the forward pass without saving activations. In generation, `caches` are those of the sequences: they receive
  /// the new keys and values, at batch.starts.
  Scratch infer(Exec& ex, const parallel::Batch& batch, Scratch x, std::span<const KvCache> caches);
  /// Maps dy [n, H] to dx [n, H]. Empties `saved`.
  Scratch backward(Exec& ex, const parallel::Batch& batch, Scratch dy, Saved& saved, parallel::GradSink& grads);

  /// Returns the store's group that contains all parameters of the block.
  int group() const { return group_; }
  /// Returns the number of local columns of keys (and of values), for the cache.
  int64_t kv_width() const { return kv_heads_ * head_dim_; }

 private:
  enum class Pass { train, recompute, infer };
  Scratch run(Exec& ex, const parallel::Batch& batch, Saved& saved, Pass pass, std::span<const KvCache> caches = {});
  Scratch mlp(Exec& ex, const parallel::Batch& batch, Saved& saved, Pass pass);
  /// Returns residual + the output of a branch (attention or MLP), whose last linear gets x. `normed` and `stats` are
  /// those of the branch's norm; post-norm: set here.
  Scratch add_branch(Exec& ex, const parallel::Batch& batch, parallel::Linear& linear, const Tensor& x,
                     const Tensor& residual, PhiloxKey site, parallel::Norm& norm, Scratch& normed,
                     parallel::NormStats* stats);
  /// Returns the gradient of the last linear's output, given that of the residual stream after the branch; empty if
  /// they are the same.
  Scratch branch_gradient(Exec& ex, const parallel::Batch& batch, const Tensor& dy, PhiloxKey site,
                          parallel::Norm& norm, Scratch& normed, parallel::NormStats& stats, parallel::GradSink& grads);
  /// Returns the gradient of the residual stream before a branch: dy of the stream after it, and d of the branch's
  /// first linear.
  Scratch stream_gradient(Exec& ex, Scratch d, const Tensor& dy, parallel::Norm& norm, const Tensor& x,
                          parallel::NormStats& stats, parallel::GradSink& grads);
  /// Appends rows x [rows, K·D] to the keys or values `to` of a cache, after `used` ones.
  void append(Exec& ex, const Tensor& x, const KvCache& cache, const Tensor& to, int64_t used) const;
  void attend(Exec& ex, const parallel::Batch& batch, Saved& saved, std::span<const KvCache> caches);
  Scratch attend_backward(Exec& ex, const parallel::Batch& batch, const Tensor& dcontext, Saved& saved,
                          parallel::GradSink& grads);
  void rotate(Exec& ex, const parallel::Batch& batch, const Tensor& qk, bool inverse) const;
  /// Returns normed and rotated queries and keys; saves the norms' statistics if `keep`, else uses the saved ones.
  Scratch normed(Exec& ex, const parallel::Batch& batch, Saved& saved, bool keep);

  bool has_dropout(const parallel::Batch& batch) const { return batch.dropout && dropout_ > 0; }
  ops::DropoutSite site(const parallel::Batch& batch, PhiloxKey key) const;
  parallel::AttentionTile attention_tile(const parallel::Batch& batch) const;
  ops::AttentionShape attention_shape(const parallel::Batch& batch) const;
  ops::AttentionDropout attention_dropout(const parallel::Batch& batch) const;
  ops::AttentionMask attention_mask(const parallel::Batch& batch) const;
  Tensor queries(const Tensor& qkv) const { return qkv.col_range(0, heads_ * head_dim_); }
  Tensor keys(const Tensor& qkv) const { return qkv.col_range(heads_ * head_dim_, kv_width()); }
  Tensor values(const Tensor& qkv) const { return qkv.col_range(heads_ * head_dim_ + kv_width(), kv_width()); }
  static Tensor gate(const Tensor& pre) { return pre.col_range(0, pre.cols() / 2); }
  static Tensor up(const Tensor& pre) { return pre.col_range(pre.cols() / 2, pre.cols() / 2); }
  Tensor queries_and_keys(const Tensor& qkv) const { return qkv.col_range(0, heads_ * head_dim_ + kv_width()); }

  int group_;
  int layer_;
  const parallel::Strategy& strategy_;
  parallel::Spread stream_;  // spread of the residual stream in this block
  int64_t width_, all_heads_, all_kv_heads_, head_dim_;
  int64_t heads_, kv_heads_;  // heads on this rank
  int64_t window_;            // keys that a row sees at most; 0: no limit
  bool gated_, post_norm_;
  double dropout_, scale_;
  config::Recompute recompute_;
  PhiloxKey attention_site_, attention_out_site_, mlp_out_site_;
  std::shared_ptr<const Buffer> rope_;
  std::unique_ptr<parallel::Norm> norm1_, norm2_;
  std::unique_ptr<parallel::Norm> q_norm_, k_norm_;  // null without qk_norm
  std::unique_ptr<parallel::Linear> qkv_, out_, up_, down_;

 public:
  /// Sets the table of cos and sin of every position, which all blocks with RoPE share.
  void set_rope(std::shared_ptr<const Buffer> table) { rope_ = std::move(table); }
};

}  // namespace trainer::model
