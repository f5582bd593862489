#pragma once
// The attention of one layer: out(core(rope(norm(q)), rope(norm(k)), v)) with q ‖ k ‖ v = qkv(x). The norms (of each
// head or of all heads together) and RoPE are optional.
#include "parallel/attention_core.h"

namespace trainer::parallel {

class Attention {
 public:
  struct Saved {
    Scratch qkv;  // [N, (A+2K)·D]; rotated in place unless there are norms
    NormStats q_stats, k_stats;
    Scratch qk;  // [N, (A+K)·D] with norms: normed and rotated; rebuilt under `selective`
    AttentionCore::Saved core;
  };
  Attention(Strategy& strategy, const LayerSpec& spec, std::unique_ptr<AttentionCore> core);

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
  int64_t kv_width() const { return core_->key_width(); }

 private:
  /// Rotates the columns q ‖ k.
  void rotate(Exec& ex, const Batch& batch, const Tensor& qkv, bool inverse) const;
  void normalize(Exec& ex, const Batch& batch, Saved& saved);
  Tensor queries(const Tensor& qkv) const { return qkv.col_range(0, core_->query_width()); }
  Tensor keys(const Tensor& qkv) const { return qkv.col_range(core_->query_width(), kv_width()); }
  Heads heads(const Saved& s) const;

  std::unique_ptr<AttentionCore> core_;
  std::shared_ptr<const Buffer> rope_;
  std::unique_ptr<Linear> qkv_, out_;
  std::unique_ptr<Norm> q_norm_, k_norm_;  // null: none
};

}  // namespace trainer::parallel
