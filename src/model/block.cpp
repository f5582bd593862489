#include "model/block.h"

#include <cmath>

#include "ops/activation.h"
#include "ops/rope.h"

namespace trainer::model {

using parallel::Batch;
using parallel::LinearSpec;
using parallel::Site;

Block::Block(const BlockSpec& spec, parallel::Strategy& strategy, config::Recompute recompute)
    : group_(spec.group),
      layer_(spec.layer),
      strategy_(strategy),
      stream_(strategy.stream(spec.layer)),
      width_(spec.model.d_model),
      all_heads_(spec.model.n_head),
      all_kv_heads_(spec.model.n_kv_head),
      head_dim_(head_size(spec.model)),
      window_(window_of(spec.model, spec.layer)),
      gated_(is_llama_like(spec.model)),
      post_norm_(has_post_norms(spec.model)),
      dropout_(spec.model.dropout),
      scale_(1.0 / std::sqrt(static_cast<double>(head_dim_))),
      recompute_(recompute) {
  const parallel::AttentionTile tile = attention_tile({});
  heads_ = tile.heads;
  kv_heads_ = tile.kv_heads;
  const config::Model& m = spec.model;
  const std::string name = format("blocks.{}.", spec.layer);
  const config::AttentionBias attention = attention_bias(m);
  const bool mlp_bias = has_mlp_bias(m);
  const double std = m.init_std;
  const double residual_std = post_norm_ ? std : std / std::sqrt(2.0 * static_cast<double>(spec.layers));
  const int64_t queries = attention_width(m), kv = key_width(m);
  parallel::NormSpec norm{
      .name = name + "norm1", .width = width_, .center = !gated_, .bias = m.bias.value(), .eps = m.norm_eps};
  norm1_ = strategy.norm(spec.layer, spec.group, norm);
  qkv_ = strategy.linear(spec.layer, spec.group,
                         LinearSpec{.site = Site::qkv,
                                    .in = width_,
                                    .parts = {{name + "attn.q", queries, m.n_head},
                                              {name + "attn.k", kv, m.n_kv_head},
                                              {name + "attn.v", kv, m.n_kv_head}},
                                    .bias = attention != config::AttentionBias::none,
                                    .init_std = std});
  out_ = strategy.linear(spec.layer, spec.group,
                         LinearSpec{.site = Site::out,
                                    .in = queries,
                                    .parts = {{name + "attn.o", width_}},
                                    .bias = attention == config::AttentionBias::all,
                                    .init_std = residual_std});
  if (const config::QkNorm kind = query_key_norm(m); kind != config::QkNorm::none) {
    const bool full = kind == config::QkNorm::full;
    const auto norm_of = [&](const char* part, int64_t width, int64_t heads, int64_t own_heads) {
      return strategy.head_norm(spec.layer, spec.group,
                                {.name = name + part,
                                 .width = full ? width : head_dim_,
                                 .center = false,
                                 .bias = false,
                                 .eps = m.norm_eps,
                                 .groups = full ? 1 : own_heads},
                                full ? heads : 0);
    };
    q_norm_ = norm_of("attn.q_norm", queries, m.n_head, heads_);
    k_norm_ = norm_of("attn.k_norm", kv, m.n_kv_head, kv_heads_);
  }
  norm.name = name + "norm2";
  norm2_ = strategy.norm(spec.layer, spec.group, norm);
  LinearSpec up{
      .site = Site::up, .in = width_, .parts = {{name + "mlp.up", m.d_ff}}, .bias = mlp_bias, .init_std = std};
  if (gated_) up.parts.insert(up.parts.begin(), {name + "mlp.gate", m.d_ff});
  up_ = strategy.linear(spec.layer, spec.group, up);
  down_ = strategy.linear(spec.layer, spec.group,
                          LinearSpec{.site = Site::down,
                                     .in = m.d_ff,
                                     .parts = {{name + "mlp.down", width_}},
                                     .bias = mlp_bias,
                                     .init_std = residual_std});
  const auto site_key = [&](const char* site) {
    return philox_key(spec.seed, format("dropout.{}.{}", spec.layer, site));
  };
  attention_site_ = site_key("attn");
  attention_out_site_ = site_key("attn_out");
  mlp_out_site_ = site_key("mlp_out");
}

parallel::AttentionTile Block::attention_tile(const Batch& batch) const {
  return strategy_.attention_tile(layer_, batch, all_heads_, all_kv_heads_);
}

ops::DropoutSite Block::site(const Batch& batch, PhiloxKey key) const {
  const parallel::Tile tile = strategy_.ranks().tile(stream_, batch.rows(), width_);
  return {.p = dropout_,
          .key = key,
          .step = batch.step,
          .first_row = batch.first_sample * batch.seq_len + tile.first_row,
          .first_col = tile.first_col,
          .width = width_};
}

ops::AttentionShape Block::attention_shape(const Batch& batch) const {
  return {.batch = attention_tile(batch).sequences,
          .q_len = batch.seq_len,
          .k_len = batch.seq_len,
          .k_capacity = 0,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_dim = head_dim_};
}

ops::AttentionDropout Block::attention_dropout(const Batch& batch) const {
  if (!has_dropout(batch)) return {};
  const parallel::AttentionTile tile = attention_tile(batch);
  return {.p = dropout_,
          .key = attention_site_,
          .step = batch.step,
          .first_sample = batch.first_sample + tile.first_sequence,
          .first_head = tile.first_head,
          .heads_global = all_heads_};
}

ops::AttentionMask Block::attention_mask(const Batch& batch) const {
  ops::AttentionMask mask{.window = window_};
  if (!batch.first_key) return mask;
  const parallel::AttentionTile tile = attention_tile(batch);
  mask.first = batch.first_key.range(tile.first_sequence * batch.seq_len, tile.sequences * batch.seq_len);
  return mask;
}

Scratch Block::forward(Exec& ex, const Batch& batch, Scratch x, Saved& saved) {
  saved.x = std::move(x);
  Scratch y = run(ex, batch, saved, Pass::train);
  if (recompute_ == config::Recompute::full) {
    Saved only_input;
    only_input.x = std::move(saved.x);
    // Keeping the statistics costs a few bytes per row. It avoids a second exchange, and post-norm a norm.
    if (norm1_->is_split() || post_norm_) {
      only_input.stats1 = std::move(saved.stats1);
      only_input.stats2 = std::move(saved.stats2);
    }
    if (q_norm_ && q_norm_->is_split()) only_input.q_stats = std::move(saved.q_stats);
    if (k_norm_ && k_norm_->is_split()) only_input.k_stats = std::move(saved.k_stats);
    saved = std::move(only_input);
  } else if (recompute_ == config::Recompute::selective) {
    saved.qk.reset();
    saved.z.reset();
    if (!post_norm_) {
      saved.a.reset();
      saved.b.reset();
    }
  }
  return y;
}

Scratch Block::infer(Exec& ex, const Batch& batch, Scratch x, std::span<const KvCache> caches) {
  Saved passing;
  passing.x = std::move(x);
  return run(ex, batch, passing, Pass::infer, caches);
}

// Runs every kind of forward pass. `infer` frees each tensor right after its use. `recompute` stops before the last
// GEMM, whose output the backward pass does not need, or post-norm after it.
Scratch Block::run(Exec& ex, const Batch& batch, Saved& s, Pass pass, std::span<const KvCache> caches) {
  const bool keep = pass != Pass::infer;
  parallel::NormStats *const stats1 = keep ? &s.stats1 : nullptr, *const stats2 = keep ? &s.stats2 : nullptr;
  if (!post_norm_) s.a = norm1_->forward(ex, s.x, stats1);
  s.qkv = qkv_->forward(ex, batch.rows(), post_norm_ ? s.x : s.a, {});
  if (!keep || recompute_ == config::Recompute::selective) s.a.reset();
  if (q_norm_) s.qk = normed(ex, batch, s, keep);
  attend(ex, batch, s, caches);
  if (!keep) {
    s.qkv.reset();
    s.qk.reset();
  }
  s.x1 = add_branch(ex, batch, *out_, s.context, s.x, attention_out_site_, *norm1_, s.a, stats1);
  if (!keep) {
    s.context.reset();
    s.x.reset();
  }
  if (!post_norm_) s.b = norm2_->forward(ex, s.x1, stats2);
  return mlp(ex, batch, s, pass);
}

Scratch Block::mlp(Exec& ex, const Batch& batch, Saved& s, Pass pass) {
  const bool keep = pass != Pass::infer;
  const Tensor x = post_norm_ ? s.x1 : s.b;
  if (gated_) {
    s.pre = up_->forward(ex, batch.rows(), x, {});  // gate ‖ up
    s.z = ex.take("mlp.z", {s.pre.tensor().rows(), s.pre.tensor().cols() / 2}, s.pre.tensor().dtype);
    ops::run(ex, ops::SwigluForward{gate(s.pre), up(s.pre), s.z});
  } else {
    s.z = up_->forward(ex, batch.rows(), x,
                       {.act = ops::Activation::gelu, .pre = keep ? &s.pre : nullptr, .residual = {}});
  }
  if (!keep) {
    s.b.reset();
    s.pre.reset();
  }
  if (pass == Pass::recompute) {
    if (post_norm_) s.b = down_->forward(ex, batch.rows(), s.z, {});
    return {};
  }
  return add_branch(ex, batch, *down_, s.z, s.x1, mlp_out_site_, *norm2_, s.b, keep ? &s.stats2 : nullptr);
}

Scratch Block::add_branch(Exec& ex, const Batch& batch, parallel::Linear& linear, const Tensor& x,
                          const Tensor& residual, PhiloxKey key, parallel::Norm& norm, Scratch& normed,
                          parallel::NormStats* stats) {
  std::optional<ops::DropoutSite> dropout;
  if (has_dropout(batch)) dropout = site(batch, key);
  if (!post_norm_) return linear.forward(ex, batch.rows(), x, {.residual = residual, .dropout = dropout});
  normed = linear.forward(ex, batch.rows(), x, {});
  Scratch y = norm.forward(ex, normed, stats);
  if (stats == nullptr) normed.reset();
  if (dropout)
    ops::run(ex, ops::DropoutAdd{y, residual, y, *dropout, {}});
  else
    ops::run(ex, ops::Add{.x = y, .other = residual, .y = y});
  return y;
}

void Block::rotate(Exec& ex, const Batch& batch, const Tensor& qk, bool inverse) const {
  if (!rope_) return;
  if (batch.starts.empty()) return ops::run(ex, ops::Rope{qk, *rope_, head_dim_, batch.seq_len, 0, inverse});
  for (size_t i = 0; i < batch.starts.size(); ++i)
    ops::run(ex, ops::Rope{qk.row_range(static_cast<int64_t>(i) * batch.seq_len, batch.seq_len), *rope_, head_dim_,
                           batch.seq_len, batch.starts[i], inverse});
}

Scratch Block::normed(Exec& ex, const Batch& batch, Saved& s, bool keep) {
  const Tensor qkv = s.qkv;
  Scratch qk = ex.take("attention.qk", {qkv.rows(), heads_ * head_dim_ + kv_width()}, qkv.dtype);
  q_norm_->forward(ex, queries(qkv), queries(qk), keep ? &s.q_stats : nullptr);
  k_norm_->forward(ex, keys(qkv), keys(qk), keep ? &s.k_stats : nullptr);
  rotate(ex, batch, qk, /*inverse=*/false);
  return qk;
}

void Block::append(Exec& ex, const Tensor& x, const KvCache& cache, const Tensor& to, int64_t used) const {
  const int64_t rows = x.rows();
  if (!cache.by_head) return ops::run(ex, ops::Copy{x, to.row_range(used, rows)});
  if (rows == 1) {  // one copy for all heads
    const Tensor heads = to.reshape({kv_heads_, cache.capacity * head_dim_});
    return ops::run(ex, ops::Copy{x.reshape({kv_heads_, head_dim_}), heads.col_range(used * head_dim_, head_dim_)});
  }
  for (int64_t head = 0; head < kv_heads_; ++head)
    ops::run(ex, ops::Copy{x.col_range(head * head_dim_, head_dim_), to.row_range(head * cache.capacity + used, rows)});
}

void Block::attend(Exec& ex, const Batch& batch, Saved& s, std::span<const KvCache> caches) {
  const Tensor qkv = s.qkv, qk = q_norm_ ? s.qk.tensor() : queries_and_keys(qkv);
  if (!q_norm_) rotate(ex, batch, qk, /*inverse=*/false);
  ops::AttentionForward op{.q = queries(qk),
                           .k = keys(qk),
                           .v = values(qkv),
                           .shape = attention_shape(batch),
                           .scale = scale_,
                           .dropout = attention_dropout(batch),
                           .mask = attention_mask(batch)};
  s.context = ex.take("attention.context", {qkv.rows(), heads_ * head_dim_}, qkv.dtype);
  op.out = s.context;
  if (caches.empty()) {
    s.lse = ex.take("attention.lse", {op.shape.batch * heads_, batch.seq_len}, accumulator_of(qkv.dtype));
    op.lse = s.lse;
    return ops::run(ex, op);
  }
  op.shape.by_head = caches.front().by_head;
  op.shape.batch = 1;  // the sequences have different numbers of keys
  for (size_t i = 0; i < caches.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) * batch.seq_len, rows = batch.seq_len, used = batch.starts[i];
    append(ex, keys(qk).row_range(row, rows), caches[i], caches[i].keys, used);
    append(ex, values(qkv).row_range(row, rows), caches[i], caches[i].values, used);
    op.q = queries(qk).row_range(row, rows);
    op.k = caches[i].keys;
    op.v = caches[i].values;
    op.out = s.context.tensor().row_range(row, rows);
    op.shape.k_len = used + rows;
    op.shape.first_query = used;
    op.shape.k_capacity = caches[i].capacity;
    ops::run(ex, op);
  }
}

Scratch Block::branch_gradient(Exec& ex, const Batch& batch, const Tensor& dy, PhiloxKey key, parallel::Norm& norm,
                               Scratch& normed, parallel::NormStats& stats, parallel::GradSink& grads) {
  Scratch d;
  if (has_dropout(batch)) {
    d = ex.take("dropout.dy", dy.shape, dy.dtype);
    ops::run(ex, ops::DropoutAdd{dy, {}, d, site(batch, key)});
  }
  if (!post_norm_) return d;
  d = norm.backward(ex, d ? d.tensor() : dy, normed, stats, {}, grads);
  normed.reset();
  stats = {};
  return d;
}

Scratch Block::stream_gradient(Exec& ex, Scratch d, const Tensor& dy, parallel::Norm& norm, const Tensor& x,
                               parallel::NormStats& stats, parallel::GradSink& grads) {
  if (post_norm_) {
    ops::run(ex, ops::Add{.x = d, .other = dy, .y = d});
    return d;
  }
  Scratch dx = norm.backward(ex, d, x, stats, dy, grads);
  stats = {};
  return dx;
}

Scratch Block::backward(Exec& ex, const Batch& batch, Scratch dy, Saved& s, parallel::GradSink& grads) {
  if (recompute_ == config::Recompute::full) {
    ex.meter.recomputing = true;
    run(ex, batch, s, Pass::recompute);
    ex.meter.recomputing = false;
  }
  const bool rebuild = recompute_ == config::Recompute::selective, rebuild_norms = rebuild && !post_norm_;
  // Backward of the MLP: down, the activation and up.
  Scratch branch = branch_gradient(ex, batch, dy, mlp_out_site_, *norm2_, s.b, s.stats2, grads);
  const Tensor dmlp = branch ? branch.tensor() : dy.tensor();
  const Tensor pre = s.pre;
  if (rebuild) s.z = ex.take("mlp.z", {pre.rows(), gated_ ? pre.cols() / 2 : pre.cols()}, pre.dtype);
  Scratch dpre;
  if (gated_) {
    if (rebuild) ops::run(ex, ops::SwigluForward{gate(pre), up(pre), s.z});
    const Scratch dz = down_->backward(ex, batch.rows(), dmlp, s.z, {}, grads);
    s.z.reset();
    ops::run(ex, ops::SwigluBackward{dz, gate(pre), up(pre), gate(pre),
                                     up(pre)});  // in place, since pre is not needed afterwards
    dpre = std::move(s.pre);
  } else {
    if (rebuild)
      ops::run(ex, ops::BiasActivation{.x = pre, .bias = {}, .pre = {}, .y = s.z, .act = ops::Activation::gelu});
    dpre = down_->backward(ex, batch.rows(), dmlp, s.z, {.act = ops::Activation::gelu, .pre = pre}, grads);
    s.z.reset();
    s.pre.reset();
  }
  branch.reset();
  if (rebuild_norms) s.b = norm2_->forward(ex, s.x1, &s.stats2);
  Scratch db = up_->backward(ex, batch.rows(), dpre, post_norm_ ? s.x1 : s.b, {}, grads);
  dpre.reset();
  s.b.reset();
  Scratch dx1 = stream_gradient(ex, std::move(db), dy, *norm2_, s.x1, s.stats2, grads);
  dy.reset();
  s.x1.reset();
  // Backward of attention: the output projection, the core and q‖k‖v.
  branch = branch_gradient(ex, batch, dx1, attention_out_site_, *norm1_, s.a, s.stats1, grads);
  Scratch dcontext = out_->backward(ex, batch.rows(), branch ? branch.tensor() : dx1.tensor(), s.context, {}, grads);
  branch.reset();
  Scratch dqkv = attend_backward(ex, batch, dcontext, s, grads);
  dcontext.reset();
  if (rebuild_norms) s.a = norm1_->forward(ex, s.x, &s.stats1);
  Scratch da = qkv_->backward(ex, batch.rows(), dqkv, post_norm_ ? s.x : s.a, {}, grads);
  dqkv.reset();
  s.a.reset();
  Scratch dx = stream_gradient(ex, std::move(da), dx1, *norm1_, s.x, s.stats1, grads);
  s.x.reset();
  return dx;
}

Scratch Block::attend_backward(Exec& ex, const Batch& batch, const Tensor& dcontext, Saved& s,
                               parallel::GradSink& grads) {
  if (q_norm_ && recompute_ == config::Recompute::selective) s.qk = normed(ex, batch, s, /*keep=*/true);
  const Tensor qkv = s.qkv, qk = q_norm_ ? s.qk.tensor() : queries_and_keys(qkv);
  Scratch d = ex.take("attention.dqkv", qkv.shape, qkv.dtype);
  const Tensor dqkv = d;
  const ops::AttentionForward forward{.q = queries(qk),
                                      .k = keys(qk),
                                      .v = values(qkv),
                                      .out = s.context,
                                      .lse = s.lse,
                                      .shape = attention_shape(batch),
                                      .scale = scale_,
                                      .dropout = attention_dropout(batch),
                                      .mask = attention_mask(batch)};
  ops::run(ex, ops::AttentionBackward{forward, dcontext, queries(dqkv), keys(dqkv), values(dqkv)});
  rotate(ex, batch, queries_and_keys(dqkv), /*inverse=*/true);
  s.qk.reset();
  if (q_norm_) {  // in place; ranks that share a key head pass on partial sums of its gradient, since the norm's
                  // backward is linear in the gradient
    q_norm_->backward(ex, queries(dqkv), queries(qkv), s.q_stats, {}, queries(dqkv), grads);
    k_norm_->backward(ex, keys(dqkv), keys(qkv), s.k_stats, {}, keys(dqkv), grads);
    s.q_stats = {};
    s.k_stats = {};
  }
  s.qkv.reset();
  s.context.reset();
  s.lse.reset();
  return d;
}

}  // namespace trainer::model
