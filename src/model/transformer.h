#pragma once
// The decoder: embedding, blocks, final norm, head. It does not depend on ranks or devices. A rank may have the whole
// model, or chunks of it.
#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"

namespace trainer::model {

/// The part of a model that runs in one pass: layers [first, last), after the embedding if it has that, and before the
/// final norm and the head if it has those.
struct Chunk {
  int64_t first = 0, last = 0;
  bool embedding = true, head = true;
  bool has(int64_t layer) const { return first <= layer && layer < last; }
};

/// The start of a pass without gradients: a chunk, by its index among the rank's, and its input, as in
/// Transformer::forward().
struct From {
  size_t chunk = 0;
  Scratch x = {};
};

class Transformer {
 public:
  /// `model` must be resolved (config::resolve). Declares the groups of the whole model and the parameters of `chunks`,
  /// which are in the order of the model, in `store`, which the caller then allocates. Without chunks, has the whole
  /// model as one. Of a tied table, the head has a copy in a group of its own if the embedding is on another rank.
  Transformer(device::Device& device, parallel::ParamStore& store, parallel::Strategy& strategy,
              const config::Model& model, int64_t vocab, const config::Train& train, uint64_t dropout_seed,
              std::vector<Chunk> chunks = {});
  const std::vector<Chunk>& chunks() const { return chunks_; }

  /// Everything that the backward pass of a micro-batch through a chunk needs; allocated once and reused.
  struct Saved {
    explicit Saved(const Chunk& of) : chunk(of), blocks(static_cast<size_t>(of.last - of.first)) {}
    Chunk chunk;
    std::vector<Block::Saved> blocks;
    Scratch x;  // [n, H] after the last block; n, H: this rank's part
    parallel::NormStats stats;
    Scratch features;  // [n, H] after the final norm
  };

  /// Runs a chunk, up to the input of the head, and saves activations for the backward pass. `x` [n, H] is what the
  /// chunk before it returned, without the embedding. Returns the residual stream in the spread of the layer after the
  /// chunk; nothing with the head.
  Scratch forward(Exec& ex, const parallel::Batch& batch, Saved& saved, Scratch x = {});
  /// Runs the chunk's gradients, last layer first; with the head, head and loss before them. Without the head, `dx` is
  /// what the chunk after it returned. Returns the gradient of the chunk's input; nothing with the embedding. `losses`
  /// receives the terms of the rows whose losses this rank computes, which only the head reads;
  /// parallel::sum_of_losses() waits for a term and sums it.
  Scratch loss_backward(Exec& ex, const parallel::Batch& batch, Saved& saved, const parallel::Losses& losses,
                        parallel::GradSink& grads, Scratch dx = {});

  /// Passes the gradients to the sink that loss_backward() left with batch.late: those of the weights of the chunk's
  /// linears. A chunk with the embedding has none left.
  void weight_gradients(Exec& ex, const parallel::Batch& batch, Saved& saved, parallel::GradSink& grads);

  /// Writes the same losses as loss_backward(), without z terms, and margins if requested; computes no gradients and
  /// applies no dropout. Returns the residual stream as forward() does.
  Scratch loss(Exec& ex, const parallel::Batch& batch, const parallel::Losses& losses, From from = {});

  /// The keys and values of this rank's blocks for one sequence of up to seq_len tokens.
  class Cache {
   public:
    Cache(device::Device& device, const Transformer& model);
    int64_t used = 0;
    int64_t capacity = 0;

   private:
    friend class Transformer;
    std::vector<Buffer> buffers_;
    std::vector<parallel::KvCache> blocks_;  // by layer
  };
  /// Returns the memory of one Cache.
  int64_t cache_bytes() const;
  /// Returns the bytes of the copy of the head's table that decoding that many texts together keeps; 0: none.
  int64_t table_copy_bytes(int64_t texts) const { return head_->copy_bytes(texts); }
  /// Appends each sequence of the batch to its cache and returns the logits of their last rows [sequences, padded
  /// vocabulary] in the accumulator type, or nothing if `with_logits` is false; without the head, the residual stream
  /// as forward() does. Several sequences must have one row each.
  Scratch extend(Exec& ex, const parallel::Batch& batch, std::span<Cache* const> caches, bool with_logits = true,
                 From from = {});
  Scratch extend(Exec& ex, const parallel::Batch& batch, Cache& cache) {
    Cache* const one = &cache;
    return extend(ex, batch, {&one, 1});
  }

  /// Sort the rows of a batch for the backward pass of the embedding (Batch::sorted, Batch::sorted_positions). Without
  /// the embedding, do nothing.
  void sort(std::span<const int32_t> ids, ops::RowsByToken& order) const {
    if (embedding_ != nullptr) embedding_->sort(ids, order);
  }
  void sort_positions(std::span<const int32_t> positions, ops::RowsByToken& order) const {
    if (embedding_ != nullptr) embedding_->sort_positions(positions, order);
  }
  /// Returns the axes along which the ranks of a replica compute the losses of different rows, and the number of these
  /// rows on this rank: none without the head.
  mesh::AxisSet loss_axes() const { return strategy_.loss_axes(); }
  int64_t loss_rows(parallel::Rows rows) const { return head_ == nullptr ? 0 : head_->loss_rows(rows); }
  /// Returns the token row of each of this rank's losses. Requires the head.
  std::vector<int64_t> rows_of_losses(const device::Device& device, parallel::Rows rows) const {
    return head_->rows_of_losses(device, rows);
  }

  int64_t vocab() const { return vocab_; }
  int64_t seq_len() const { return model_.seq_len; }

 private:
  Scratch embed(Exec& ex, const parallel::Batch& batch);
  /// Runs a chunk up to the input of the head, without saving activations.
  Scratch infer(Exec& ex, parallel::Batch batch, std::span<Cache* const> caches, From from);
  /// Redistributes this rank's part of the residual stream from the spread of one layer to that of another.
  Scratch move(Exec& ex, const parallel::Batch& batch, Scratch x, int64_t from, int64_t to) const;
  Block& block(int64_t layer) { return *blocks_[static_cast<size_t>(layer)]; }

  config::Model model_;
  int64_t vocab_;
  int embedding_group_ = 0, head_group_ = 0;  // groups in the store
  int table_group_ = -1;                      // group of a copy of a tied table; -1: none
  parallel::ParamStore& store_;
  parallel::Strategy& strategy_;
  parallel::StreamDropout embedding_dropout_;
  double embedding_scale_;  // multiplies the rows that the embedding returns; 1: no scale
  std::vector<Chunk> chunks_;
  std::unique_ptr<parallel::Embedding> embedding_;
  std::vector<std::optional<Block>> blocks_;  // by layer; empty: on another rank
  std::unique_ptr<parallel::Norm> final_norm_;
  std::unique_ptr<parallel::Head> head_;
};

}  // namespace trainer::model
