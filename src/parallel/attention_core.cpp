#include "parallel/attention_core.h"

#include <algorithm>
#include <cmath>

#include "ops/elementwise.h"
#include "parallel/shared_attention.h"

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

AttentionCore::AttentionCore(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec)
    : ranks_(ranks), rows_(layer.attention.rows), context_(layer.context.axes) {
  const Spread spread = layer.attention;
  const int64_t heads = spec.model.n_head, sharers = ranks.size(spread.cols);
  TRAINER_CHECK(heads % sharers == 0, "{} heads cannot be split evenly over {} ranks", heads, sharers);
  op_.shape.heads = heads / sharers;
  op_.shape.kv_heads = std::max<int64_t>(1, spec.model.n_kv_head / sharers);
  op_.shape.head_dim = head_size(spec.model);
  op_.scale = 1.0 / std::sqrt(score_scalar(spec.model));
  op_.mask.window = window_of(spec.model, spec.layer);
  op_.dropout.p = spec.model.dropout;
  op_.dropout.key = spec.dropout_key("attn");
  op_.dropout.first_head = ranks.index(spread.cols) * heads / sharers;
  op_.dropout.heads_global = heads;
}

ops::AttentionForward AttentionCore::op(const Batch& batch, const Heads& x) const {
  const AxisSet cut = batch.cut ? rows_ & ~context_ : AxisSet{0};
  const int64_t groups = ranks_.size(cut), sharers = batch.cut ? ranks_.size(context_) : 1, length = batch.seq_len;
  TRAINER_CHECK(batch.sequences % groups == 0, "{} sequences cannot be split evenly over {} ranks", batch.sequences,
                groups);
  ops::AttentionForward op = op_;
  op.q = x.q;
  op.k = x.k;
  op.v = x.v;
  op.shape.batch = batch.sequences / groups;
  op.shape.q_len = op.shape.k_len = length / sharers;
  const int64_t first = ranks_.index(cut) * op.shape.batch;
  op.dropout.step = batch.step;
  op.dropout.first_sample = batch.first_sample + first;
  if (!batch.dropout) op.dropout = {};
  op.mask.first = own_rows(batch, batch.first_key);
  return op;
}

void AttentionCore::forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved) {
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
                                const Saved& saved) {
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

std::unique_ptr<AttentionCore> attention_core(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec) {
  if (ranks.size(layer.context.axes) == 1) return std::make_unique<AttentionCore>(ranks, layer, spec);
  // A ring would send every block to every rank, which would use few of them if it has a window.
  if (layer.context.schedule == sharding::Transfer::ring && window_of(spec.model, spec.layer) == 0)
    return std::make_unique<RingAttention>(ranks, layer, spec);
  return std::make_unique<GatheredAttention>(ranks, layer, spec);
}

}  // namespace trainer::parallel
