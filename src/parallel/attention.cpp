#include "parallel/attention.h"

#include "ops/rope.h"

namespace trainer::parallel {
Attention::Attention(Strategy& strategy, const LayerSpec& spec, std::unique_ptr<AttentionCore> core)
    : core_(std::move(core)), rope_(spec.rope) {
  qkv_ = strategy.linear(spec.layer, spec.group, spec.linear(Site::qkv));
  out_ = strategy.linear(spec.layer, spec.group, spec.linear(Site::out));
  if (query_key_norm(spec.model) == config::QkNorm::none) return;
  q_norm_ = strategy.head_norm(spec, spec.name() + "attn.q_norm", spec.model.n_head);
  k_norm_ = strategy.head_norm(spec, spec.name() + "attn.k_norm", spec.model.n_kv_head);
}

void Attention::forward(Exec& ex, const Batch& batch, Operand x, Saved& s) {
  s.qkv = qkv_->forward(ex, batch.rows(), x, {});
  x.owner.reset();
  if (q_norm_)
    normalize(ex, batch, s);
  else
    rotate(ex, batch, s.qkv, /*inverse=*/false);
  core_->forward(ex, batch, heads(s), s.core);
  if (batch.keep) return;
  s.qkv.reset();
  s.qk.reset();
}

Scratch Attention::output(Exec& ex, const Batch& batch, const ForwardFusion& fusion, Saved& s) {
  Scratch y = out_->forward(ex, batch.rows(), s.core.context, fusion);
  if (!batch.keep) s.core.context.reset();
  return y;
}

Scratch Attention::backward(Exec& ex, const Batch& batch, Operand dy, Saved& s, GradSink& grads) {
  const Scratch dcontext = out_->backward(ex, batch.rows(), dy, s.core.context, {}, grads, batch.late);
  dy.owner.reset();
  if (q_norm_ && !s.qk) normalize(ex, batch, s);
  Scratch d = core_->backward(ex, batch, dcontext, heads(s), s.core);
  rotate(ex, batch, d, /*inverse=*/true);
  s.qk.reset();
  if (q_norm_) {  // in place; ranks that share a key head pass on partial sums of its gradient, since the norm's
                  // backward is linear in the gradient
    q_norm_->backward(ex, queries(d), queries(s.qkv), s.q_stats, {}, queries(d), grads);
    k_norm_->backward(ex, keys(d), keys(s.qkv), s.k_stats, {}, keys(d), grads);
  }
  Saved late;
  if (batch.late) late.core.context = std::move(s.core.context);
  s = std::move(late);
  return d;
}

void Attention::forget(Saved& s, config::Recompute recompute) const {
  s.qk.reset();
  if (recompute != config::Recompute::full) return;
  Saved kept;  // statistics whose computation exchanges data
  if (q_norm_ && q_norm_->is_split()) kept.q_stats = std::move(s.q_stats);
  if (k_norm_ && k_norm_->is_split()) kept.k_stats = std::move(s.k_stats);
  s = std::move(kept);
}

void Attention::rotate(Exec& ex, const Batch& batch, const Tensor& qkv, bool inverse) const {
  if (!rope_) return;
  const Tensor qk = qkv.col_range(0, core_->query_width() + kv_width());
  const int64_t d = core_->head_dim(), rows = batch.seq_len;
  if (batch.starts.empty())
    return ops::run(ex, ops::Rope{qk, *rope_, d, rows, 0, inverse, core_->own_rows(batch, batch.positions)});
  for (size_t i = 0; i < batch.starts.size(); ++i)
    ops::run(ex,
             ops::Rope{qk.row_range(static_cast<int64_t>(i) * rows, rows), *rope_, d, rows, batch.starts[i], inverse});
}

// Sets qk. Uses the norms' statistics if they have been saved.
void Attention::normalize(Exec& ex, const Batch& batch, Saved& s) {
  const Tensor from = s.qkv;
  s.qk = ex.take("attention.qk", {from.rows(), core_->query_width() + kv_width()}, from.dtype);
  q_norm_->forward(ex, queries(from), queries(s.qk), batch.keep ? &s.q_stats : nullptr);
  k_norm_->forward(ex, keys(from), keys(s.qk), batch.keep ? &s.k_stats : nullptr);
  rotate(ex, batch, s.qk, /*inverse=*/false);
}

Heads Attention::heads(const Saved& s) const {
  const Tensor qkv = s.qkv, qk = q_norm_ ? s.qk.tensor() : qkv;
  return {queries(qk), keys(qk), qkv.col_range(core_->query_width() + kv_width(), kv_width())};
}

}  // namespace trainer::parallel
