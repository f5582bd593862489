#pragma once
// The attention of one layer: out(core(rope(norm(q)), rope(norm(k)), v)) with q ‖ k ‖ v = qkv(x). The norms (of each
// head or of all heads together) and RoPE are optional.
#include "ops/attention.h"
#include "parallel/strategy.h"

namespace trainer::parallel {

/// Queries, keys and values of this rank's sequences and heads: [N, A·D], [N, K·D], [N, K·D].
struct Heads {
  Tensor q, k, v;
};

/// Computes the context of queries on a rank that has all keys and values of its sequences and heads.
class AttentionCore {
 public:
  struct Saved {
    Scratch context;  // [N, A·D]
    Scratch lse;      // [b·A, S] accumulator type
  };
  /// `spread`: sequences are split along its rows, heads along its columns. If there are more ranks than key/value
  /// heads, several ranks hold the same key/value head.
  AttentionCore(const Ranks& ranks, Spread spread, const LayerSpec& spec);

  /// Sets `saved`. In generation, first appends keys and values to the caches, and stores no log-sum-exps.
  void forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved) const;
  /// Returns the gradients of q ‖ k ‖ v, given that of the context.
  Scratch backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x, const Saved& saved) const;

  /// Returns the elements of `all`, one of the batch's tensors [N], for this rank's rows of q, k and v; empty if `all`
  /// is empty.
  Tensor own_rows(const Batch& batch, const Tensor& all) const {
    return all ? rows_of(all, ranks_.tile({batch.cut ? rows_ : AxisSet{0}, 0}, batch.rows(), 1)) : Tensor();
  }
  int64_t head_dim() const { return op_.shape.head_dim; }
  int64_t query_width() const { return op_.shape.heads * head_dim(); }
  int64_t key_width() const { return op_.shape.kv_heads * head_dim(); }

 private:
  /// Returns the operation without its results.
  ops::AttentionForward op(const Batch& batch, const Heads& x) const;
  Ranks ranks_;
  AxisSet rows_;              // axes that split sequences
  ops::AttentionForward op_;  // members that all batches share
};

class Attention {
 public:
  struct Saved {
    Scratch qkv;  // [N, (A+2K)·D]; rotated in place unless there are norms
    NormStats q_stats, k_stats;
    Scratch qk;  // [N, (A+K)·D] with norms: normed and rotated; rebuilt under `selective`
    AttentionCore::Saved core;
  };
  Attention(Strategy& strategy, const LayerSpec& spec, AttentionCore core);

  /// Computes the input of the last linear from x [n, H].
  void forward(Exec& ex, const Batch& batch, Operand x, Saved& saved);
  /// Returns the output of the last linear [n, H].
  Scratch output(Exec& ex, const Batch& batch, const ForwardFusion& fusion, Saved& saved);
  /// Returns the gradient of the first linear's output, given that of the last one's. Empties `saved`; with batch.late,
  /// the last linear's input stays for weight_gradients().
  Scratch backward(Exec& ex, const Batch& batch, Operand dy, Saved& saved, GradSink& grads);
  /// Returns the gradient of x, given that of the first linear's output.
  Scratch input_gradient(Exec& ex, const Batch& batch, const Tensor& d, const Tensor& x, Saved&, GradSink& grads) {
    return qkv_->backward(ex, batch.rows(), d, x, {}, grads, batch.late);
  }
  /// Passes the gradients of both linears' weights to the sink, after backward() with batch.late. dy, d: the gradients
  /// of the last linear's output and of the first one's, whose input is x.
  void weight_gradients(Exec& ex, const Batch& batch, const Tensor& dy, const Tensor& d, const Tensor& x,
                        const Saved& saved, GradSink& grads) {
    out_->weight_gradient(ex, batch.rows(), dy, saved.core.context, grads);
    qkv_->weight_gradient(ex, batch.rows(), d, x, grads);
  }
  bool has_late_weight_gradients() const { return true; }
  /// Frees what recomputation rebuilds.
  void forget(Saved& saved, config::Recompute recompute) const;
  /// Returns the number of local columns of keys (and of values), for the cache.
  int64_t kv_width() const { return core_.key_width(); }

 private:
  /// Rotates the columns q ‖ k.
  void rotate(Exec& ex, const Batch& batch, const Tensor& qkv, bool inverse) const;
  void normalize(Exec& ex, const Batch& batch, Saved& saved);
  Tensor queries(const Tensor& qkv) const { return qkv.col_range(0, core_.query_width()); }
  Tensor keys(const Tensor& qkv) const { return qkv.col_range(core_.query_width(), kv_width()); }
  Heads heads(const Saved& s) const;

  AttentionCore core_;
  std::shared_ptr<const Buffer> rope_;
  std::unique_ptr<Linear> qkv_, out_;
  std::unique_ptr<Norm> q_norm_, k_norm_;  // null: none
};

}  // namespace trainer::parallel
