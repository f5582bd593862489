#include "parallel/attention.h"

#include <algorithm>
#include <cmath>

#include "ops/rope.h"

namespace trainer::parallel {
namespace {

/// Appends rows x [rows, K·D] to the keys or values `to` of a cache, after `used` ones.
void append(Exec& ex, const Tensor& x, const KvCache& cache, const Tensor& to, int64_t used) {
  const int64_t rows = x.rows();
  if (!cache.by_head) return ops::run(ex, ops::Copy{x, to.row_range(used, rows)});
  const int64_t heads = to.rows() / cache.capacity, d = to.cols();
  if (rows == 1) {  // one copy for all heads
    const Tensor all = to.reshape({heads, cache.capacity * d});
    return ops::run(ex, ops::Copy{x.reshape({heads, d}), all.col_range(used * d, d)});
  }
  for (int64_t head = 0; head < heads; ++head)
    ops::run(ex, ops::Copy{x.col_range(head * d, d), to.row_range(head * cache.capacity + used, rows)});
}

}  // namespace

AttentionCore::AttentionCore(const Ranks& ranks, Spread spread, const LayerSpec& spec)
    : ranks_(ranks), rows_(spread.rows) {
  const int64_t heads = spec.model.n_head, sharers = ranks.size(spread.cols);
  TRAINER_CHECK(heads % sharers == 0, "{} heads cannot be split evenly over {} ranks", heads, sharers);
  op_.shape.heads = heads / sharers;
  op_.shape.kv_heads = std::max<int64_t>(1, spec.model.n_kv_head / sharers);
  op_.shape.head_dim = head_size(spec.model);
  op_.scale = 1.0 / std::sqrt(static_cast<double>(head_dim()));
  op_.mask.window = window_of(spec.model, spec.layer);
  op_.dropout.p = spec.model.dropout;
  op_.dropout.key = spec.dropout_key("attn");
  op_.dropout.first_head = ranks.index(spread.cols) * heads / sharers;
  op_.dropout.heads_global = heads;
}

ops::AttentionForward AttentionCore::op(const Batch& batch, const Heads& x) const {
  const AxisSet cut = batch.cut ? rows_ : AxisSet{0};
  const int64_t groups = ranks_.size(cut), length = batch.seq_len;
  TRAINER_CHECK(batch.sequences % groups == 0, "{} sequences cannot be split evenly over {} ranks", batch.sequences,
                groups);
  ops::AttentionForward op = op_;
  op.q = x.q;
  op.k = x.k;
  op.v = x.v;
  op.shape.batch = batch.sequences / groups;
  op.shape.q_len = op.shape.k_len = length;
  const int64_t first = ranks_.index(cut) * op.shape.batch;
  op.dropout.step = batch.step;
  op.dropout.first_sample = batch.first_sample + first;
  if (!batch.dropout) op.dropout = {};
  op.mask.first = own_rows(batch, batch.first_key);
  return op;
}

void AttentionCore::forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved) const {
  ops::AttentionForward op = this->op(batch, x);
  saved.context = ex.take("attention.context", {x.q.rows(), query_width()}, x.q.dtype);
  op.out = saved.context;
  if (batch.caches.empty()) {
    saved.lse = ex.take("attention.lse", {op.shape.batch * op.shape.heads, batch.seq_len}, accumulator_of(x.q.dtype));
    op.lse = saved.lse;
    return ops::run(ex, op);
  }
  op.shape.batch = 1;  // the sequences have different numbers of keys
  for (size_t i = 0; i < batch.caches.size(); ++i) {
    const KvCache& cache = batch.caches[i];
    const int64_t row = static_cast<int64_t>(i) * batch.seq_len, rows = batch.seq_len, used = batch.starts[i];
    append(ex, x.k.row_range(row, rows), cache, cache.keys, used);
    append(ex, x.v.row_range(row, rows), cache, cache.values, used);
    op.q = x.q.row_range(row, rows);
    op.k = cache.keys;
    op.v = cache.values;
    op.out = saved.context.tensor().row_range(row, rows);
    op.shape.k_len = used + rows;
    op.shape.k_capacity = cache.capacity;
    op.shape.by_head = cache.by_head;
    op.shape.first_query = used;
    ops::run(ex, op);
  }
}

Scratch AttentionCore::backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x,
                                const Saved& saved) const {
  const int64_t q = query_width(), k = key_width();
  Scratch d = ex.take("attention.dqkv", {x.q.rows(), q + 2 * k}, x.q.dtype);
  const Tensor dqkv = d;
  ops::AttentionForward op = this->op(batch, x);
  op.out = saved.context;
  op.lse = saved.lse;
  ops::run(ex,
           ops::AttentionBackward{op, dcontext, dqkv.col_range(0, q), dqkv.col_range(q, k), dqkv.col_range(q + k, k)});
  return d;
}

Attention::Attention(Strategy& strategy, const LayerSpec& spec, AttentionCore core)
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
  core_.forward(ex, batch, heads(s), s.core);
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
  Scratch d = core_.backward(ex, batch, dcontext, heads(s), s.core);
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
  const Tensor qk = qkv.col_range(0, core_.query_width() + kv_width());
  const int64_t d = core_.head_dim(), rows = batch.seq_len;
  if (batch.starts.empty())
    return ops::run(ex, ops::Rope{qk, *rope_, d, rows, 0, inverse, core_.own_rows(batch, batch.positions)});
  for (size_t i = 0; i < batch.starts.size(); ++i)
    ops::run(ex,
             ops::Rope{qk.row_range(static_cast<int64_t>(i) * rows, rows), *rope_, d, rows, batch.starts[i], inverse});
}

// Sets qk. Uses the norms' statistics if they have been saved.
void Attention::normalize(Exec& ex, const Batch& batch, Saved& s) {
  const Tensor from = s.qkv;
  s.qk = ex.take("attention.qk", {from.rows(), core_.query_width() + kv_width()}, from.dtype);
  q_norm_->forward(ex, queries(from), queries(s.qk), batch.keep ? &s.q_stats : nullptr);
  k_norm_->forward(ex, keys(from), keys(s.qk), batch.keep ? &s.k_stats : nullptr);
  rotate(ex, batch, s.qk, /*inverse=*/false);
}

Heads Attention::heads(const Saved& s) const {
  const Tensor qkv = s.qkv, qk = q_norm_ ? s.qk.tensor() : qkv;
  return {queries(qk), keys(qk), qkv.col_range(core_.query_width() + kv_width(), kv_width())};
}

}  // namespace trainer::parallel
