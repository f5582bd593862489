#include "model/transformer.h"

#include <algorithm>
#include <cmath>

#include "model/rope.h"
#include "tensor/host_copy.h"

namespace trainer::model {

using parallel::Batch;

namespace {

constexpr const char* kLayer = "layer";  // in a trace

/// Returns √width, rounded to the compute type as transformers does. Rows are scaled, never the table, which may also
/// be the head.
double scale_of_embedding(int64_t width, DType compute) {
  const double root = std::sqrt(static_cast<double>(width));
  if (compute == DType::f64) return root;
  const auto single = static_cast<float>(root);
  return static_cast<double>(compute == DType::bf16 ? static_cast<float>(bf16(single)) : single);
}

}  // namespace

Transformer::Transformer(device::Device& device, parallel::ParamStore& store, parallel::Strategy& strategy,
                         const config::Model& model, int64_t vocab, const config::Train& train, uint64_t dropout_seed,
                         std::vector<Chunk> chunks)
    : model_(model),
      vocab_(vocab),
      store_(store),
      strategy_(strategy),
      embedding_dropout_{strategy.ranks(), strategy.stream(0), model.d_model, model.dropout,
                         philox_key(dropout_seed, "dropout.embedding")},
      embedding_scale_(model.family.scales_embedding ? scale_of_embedding(model.d_model, store.compute_dtype()) : 1),
      chunks_(chunks.empty() ? std::vector{Chunk{.last = model.n_layer}} : std::move(chunks)),
      blocks_(static_cast<size_t>(model.n_layer)) {
  const bool rotates = has_rope_positions(model), tied = model.tie_embeddings.value();
  const parallel::EmbeddingSpec table{.vocab = vocab,
                                      .d_model = model.d_model,
                                      .positions = rotates ? 0 : model.seq_len,
                                      .vocab_multiple = model.vocab_multiple,
                                      .init_std = model.init_std,
                                      .logit_softcap = model.logit_softcap};
  embedding_group_ = store.add_group("embedding");
  if (std::ranges::any_of(chunks_, &Chunk::embedding)) embedding_ = strategy.embedding(embedding_group_, table);
  std::shared_ptr<const Buffer> ropes[2];  // for layers without and with a RoPE of windows
  const auto rope_of = [&](int64_t layer) {
    const bool windowed = has_window_rope(model, layer);
    std::shared_ptr<const Buffer>& rope = ropes[windowed ? 1 : 0];
    if (rope != nullptr || !has_rope(model, layer)) return has_rope(model, layer) ? rope : nullptr;
    rope =
        std::make_shared<const Buffer>(device, "tables", Shape{model.seq_len, rotary_size(model)}, store.state_dtype());
    HostCopy table_here(device, *rope);
    ops::fill_rope_table(table_here.tensor(), windowed ? model.window_rope_theta : model.rope_theta,
                         windowed ? ops::RopeScaling{} : rope_scaling(model));
    table_here.put();
    return rope;
  };
  for (int layer = 0; layer < model.n_layer; ++layer) {
    const int group = store.add_group(format("blocks.{}", layer));
    if (std::ranges::any_of(chunks_, [&](const Chunk& chunk) { return chunk.has(layer); }))
      blocks_[static_cast<size_t>(layer)].emplace(
          strategy, parallel::LayerSpec{layer, group, model, recompute_of(train, layer), dropout_seed, rope_of(layer)});
  }
  head_group_ = store.add_group("head");
  const bool has_head = std::ranges::any_of(chunks_, &Chunk::head);
  if (tied && (embedding_ == nullptr || !has_head)) table_group_ = store.add_group("table");
  if (!has_head) return;
  final_norm_ = strategy.norm(static_cast<int>(model.n_layer), head_group_, parallel::norm_of(model, "norm_f"));
  parallel::EmbeddingSpec own = table;
  own.init_std *= model.init_head;
  head_ = strategy.head(static_cast<int>(model.n_layer), table_group_ < 0 ? head_group_ : table_group_, own, tied);
}

Scratch Transformer::move(Exec& ex, const Batch& batch, Scratch x, int64_t from, int64_t to) const {
  return strategy_.ranks().move(ex, batch.rows(), model_.d_model, strategy_.stream(from), strategy_.stream(to),
                                std::move(x));
}

Scratch Transformer::embed(Exec& ex, const Batch& batch) {
  Scratch x = embedding_->forward(ex, batch);
  if (embedding_scale_ != 1) ops::run(ex, ops::Scale{x, embedding_scale_});
  if (const auto dropout = embedding_dropout_.of(batch)) ops::run(ex, ops::DropoutAdd{x, {}, x, *dropout});
  return x;
}

Scratch Transformer::forward(Exec& ex, const Batch& batch, Saved& saved, Scratch x) {
  const Chunk& chunk = saved.chunk;
  if (chunk.embedding) x = embed(ex, batch);
  for (int64_t l = chunk.first; l < chunk.last; ++l) {
    const TraceScope traced(ex.meter.trace, kLayer, l);
    x = block(l).forward(ex, batch, std::move(x), saved.blocks[static_cast<size_t>(l - chunk.first)]);
    x = move(ex, batch, std::move(x), l, l + 1);
  }
  if (!chunk.head) return x;
  saved.x = std::move(x);
  saved.features = final_norm_->forward(ex, saved.x, &saved.stats);
  return {};
}

Scratch Transformer::loss_backward(Exec& ex, const Batch& batch, Saved& saved, const parallel::Losses& losses,
                                   parallel::GradSink& grads, Scratch dx) {
  const Chunk& chunk = saved.chunk;
  if (chunk.head) {
    Scratch df;
    head_->loss_backward(ex, batch, saved.features, losses, df, grads);
    saved.features.reset();
    dx = final_norm_->backward(ex, df, saved.x, saved.stats, {}, grads);
    df.reset();
    saved.x.reset();
    saved.stats = {};
    if (table_group_ >= 0) grads.end_group(ex, table_group_);
    grads.end_group(ex, head_group_);
  }
  for (int64_t l = chunk.last; l-- > chunk.first;) {
    const TraceScope traced(ex.meter.trace, kLayer, l);
    dx = move(ex, batch, std::move(dx), l + 1, l);
    dx = block(l).backward(ex, batch, std::move(dx), saved.blocks[static_cast<size_t>(l - chunk.first)], grads);
    if (!batch.late) grads.end_group(ex, block(l).group());
  }
  if (chunk.embedding) {
    if (const auto dropout = embedding_dropout_.of(batch)) ops::run(ex, ops::DropoutAdd{dx, {}, dx, *dropout});
    if (embedding_scale_ != 1) ops::run(ex, ops::Scale{dx, embedding_scale_});
    embedding_->backward(ex, batch, dx, grads);
    grads.end_group(ex, embedding_group_);
  }
  grads.end_micro(ex);
  if (chunk.embedding) dx.reset();
  return dx;
}

void Transformer::weight_gradients(Exec& ex, const Batch& batch, Saved& saved, parallel::GradSink& grads) {
  const Chunk& chunk = saved.chunk;
  for (int64_t l = chunk.last; l-- > chunk.first;) {
    const TraceScope traced(ex.meter.trace, kLayer, l);
    block(l).weight_gradients(ex, batch, saved.blocks[static_cast<size_t>(l - chunk.first)], grads);
    grads.end_group(ex, block(l).group());
  }
  grads.end_micro(ex);
}

Scratch Transformer::infer(Exec& ex, Batch batch, std::span<Cache* const> caches, From from) {
  batch.keep = false;
  const Chunk& chunk = chunks_[from.chunk];
  Scratch x = chunk.embedding ? embed(ex, batch) : std::move(from.x);
  std::vector<parallel::KvCache> of_block(caches.size());
  batch.caches = of_block;
  for (int64_t l = chunk.first; l < chunk.last; ++l) {
    for (size_t i = 0; i < caches.size(); ++i) of_block[i] = caches[i]->blocks_[static_cast<size_t>(l)];
    Block::Saved passing;
    x = block(l).forward(ex, batch, std::move(x), passing);
    passing = {};
    x = move(ex, batch, std::move(x), l, l + 1);
  }
  return chunk.head ? final_norm_->forward(ex, x, nullptr) : std::move(x);
}

Scratch Transformer::loss(Exec& ex, const Batch& batch, const parallel::Losses& losses, From from) {
  const bool head = chunks_[from.chunk].head;
  Scratch x = infer(ex, batch, {}, std::move(from));
  if (!head) return x;
  head_->loss(ex, batch, x, losses);
  return {};
}

Transformer::Cache::Cache(device::Device& device, const Transformer& model) : capacity(model.model_.seq_len) {
  const bool by_head = device.kind() == device::DeviceKind::cpu;
  const int64_t head_dim = head_size(model.model_);
  for (const std::optional<Block>& block : model.blocks_) {
    if (!block) {
      blocks_.emplace_back();
      continue;
    }
    const int64_t width = block->kv_width();
    const Shape shape = by_head ? Shape{capacity * width / head_dim, head_dim} : Shape{capacity, width};
    for (int i = 0; i < 2; ++i) buffers_.emplace_back(device, "kv_cache", shape, model.store_.compute_dtype());
    blocks_.push_back({buffers_[buffers_.size() - 2], buffers_.back(), capacity, by_head});
  }
}

int64_t Transformer::cache_bytes() const {
  int64_t width = 0;
  for (const std::optional<Block>& block : blocks_) width += block ? block->kv_width() : 0;
  return 2 * model_.seq_len * width * size_of(store_.compute_dtype());
}

Scratch Transformer::extend(Exec& ex, const Batch& all, std::span<Cache* const> caches, bool with_logits, From from) {
  Batch batch = all;
  batch.cut = false;
  std::vector<int64_t> starts;
  for (const Cache* cache : caches) {
    starts.push_back(cache->used);
    TRAINER_CHECK(cache->used + batch.seq_len <= cache->capacity, "{} rows do not fit after {} of {} in a cache",
                  batch.seq_len, cache->used, cache->capacity);
  }
  batch.starts = starts;
  TRAINER_CHECK(static_cast<int64_t>(caches.size()) == batch.sequences && (batch.sequences == 1 || batch.seq_len == 1),
                "{} caches for {} sequences of {} rows", caches.size(), batch.sequences, batch.seq_len);
  const bool head = chunks_[from.chunk].head, last = from.chunk + 1 == chunks_.size();
  Scratch x = infer(ex, batch, caches, std::move(from));
  if (last)
    for (Cache* cache : caches) cache->used += batch.seq_len;
  if (!head) return x;
  if (!with_logits) return {};
  return head_->logits(ex, x.tensor().row_range(batch.rows().count - batch.sequences, batch.sequences));
}

}  // namespace trainer::model
