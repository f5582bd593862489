#pragma once
// The decoder: embedding, blocks, final norm, head. It does not depend on ranks or devices.
#include <memory>
#include <vector>

#include "model/block.h"

namespace trainer::model {

class Transformer {
 public:
  /// `model` must be resolved (config::resolve). Declares its parameters in `store`, which the caller then allocates.
  Transformer(device::Device& device, parallel::ParamStore& store, parallel::Strategy& strategy,
              const config::Model& model, int64_t vocab, const config::Train& train, uint64_t dropout_seed);

  /// Everything that the backward pass of a micro-batch needs; allocated once and reused.
  struct Saved {
    explicit Saved(const Transformer& model) : blocks(model.blocks_.size()) {}
    std::vector<Block::Saved> blocks;
    Scratch x;  // [n, H] after the last block; n, H: this rank's part
    parallel::NormStats stats;
    Scratch features;  // [n, H] after the final norm
  };

  /// Runs the model up to the input of the head and saves activations for the backward pass.
  void forward(Exec& ex, const parallel::Batch& batch, Saved& saved);
  /// Runs head, loss and all gradients, last layer first. losses [loss_rows] f64 receives weights·loss of the rows
  /// whose losses this rank computes, not scaled by loss_scale; parallel::sum_of_losses waits for them and sums them.
  /// With batch.z_loss, losses is [2·loss_rows] and also receives the rows' z terms.
  void backward(Exec& ex, const parallel::Batch& batch, Saved& saved, const Tensor& losses, parallel::GradSink& grads);
  /// Writes the same losses as backward(), but computes no gradients and applies no dropout.
  void loss(Exec& ex, const parallel::Batch& batch, const Tensor& losses);

  /// The keys and values of all blocks for one sequence of up to seq_len tokens.
  class Cache {
   public:
    Cache(device::Device& device, const Transformer& model);
    int64_t used = 0;
    int64_t capacity = 0;

   private:
    friend class Transformer;
    std::vector<Buffer> buffers_;
    std::vector<parallel::KvCache> blocks_;
  };
  /// Returns the memory of one Cache.
  int64_t cache_bytes() const;
  /// Returns the bytes of the copy of the head's table that decoding that many texts together keeps; 0: none.
  int64_t table_copy_bytes(int64_t texts) const { return head_->copy_bytes(texts); }
  /// Appends each sequence of the batch to its cache and returns the logits of their last rows [sequences, padded
  /// vocabulary] in the accumulator type, or nothing if `with_logits` is false. Several sequences must have one row
  /// each.
  Scratch extend(Exec& ex, const parallel::Batch& batch, std::span<Cache* const> caches, bool with_logits = true);
  Scratch extend(Exec& ex, const parallel::Batch& batch, Cache& cache) {
    Cache* const one = &cache;
    return extend(ex, batch, {&one, 1});
  }

  /// Returns the axes along which the ranks of a replica compute the losses of different rows, and the number of these
  /// rows on this rank.
  mesh::AxisSet loss_axes() const { return head_->loss_axes(); }
  int64_t loss_rows(parallel::Rows rows) const { return head_->loss_rows(rows); }
  /// Returns the token row of each of this rank's losses.
  std::vector<int64_t> rows_of_losses(const device::Device& device, parallel::Rows rows) const {
    return head_->rows_of_losses(device, rows);
  }

  int64_t vocab() const { return vocab_; }
  int64_t seq_len() const { return model_.seq_len; }

 private:
  Scratch embed(Exec& ex, const parallel::Batch& batch);
  /// Runs the model up to the input of the head, without saving activations.
  Scratch infer(Exec& ex, parallel::Batch batch, std::span<Cache* const> caches);
  /// Redistributes this rank's part of the residual stream from the spread of one layer to that of another.
  Scratch move(Exec& ex, const parallel::Batch& batch, Scratch x, size_t from, size_t to) const;

  config::Model model_;
  int64_t vocab_;
  int embedding_group_ = 0, head_group_ = 0;  // groups in the store
  parallel::ParamStore& store_;
  parallel::Strategy& strategy_;
  parallel::StreamDropout embedding_dropout_;
  std::unique_ptr<parallel::Embedding> embedding_;
  std::vector<Block> blocks_;
  std::unique_ptr<parallel::Norm> final_norm_;
  std::unique_ptr<parallel::Head> head_;
};

}  // namespace trainer::model
