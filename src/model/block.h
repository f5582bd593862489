#pragma once
// One transformer block: attention and the MLP, each a branch of the residual stream.
#include "model/branch.h"

namespace trainer::model {

class Block {
 public:
  struct Saved {
    Branch<parallel::Attention>::Saved attention;
    Branch<parallel::Mlp>::Saved mlp;
  };
  Block(parallel::Strategy& strategy, const parallel::LayerSpec& spec)
      : group_(spec.group),
        recompute_(spec.recompute),
        attention_(strategy, spec, "norm1", "attn_out", &parallel::Strategy::attention),
        mlp_(strategy, spec, "norm2", "mlp_out", &parallel::Strategy::mlp) {}

  /// Maps x [n, H] to [n, H]. Sets `s` for the backward pass if batch.keep.
  Scratch forward(Exec& ex, const parallel::Batch& batch, Scratch x, Saved& s) {
    Scratch y = mlp_.forward(ex, batch, attention_.forward(ex, batch, std::move(x), s.attention), s.mlp);
    if (!batch.keep) return y;
    attention_.forget(s.attention);
    mlp_.forget(s.mlp);
    if (recompute_ == config::Recompute::full) s.mlp.x.reset();
    return y;
  }
  /// Maps dy [n, H] to dx [n, H]. Empties `s`; with batch.late, weight_gradients() does.
  Scratch backward(Exec& ex, const parallel::Batch& batch, Scratch dy, Saved& s, parallel::GradSink& grads) {
    if (recompute_ == config::Recompute::full) {
      ex.meter.recomputing = true;
      mlp_.rebuild(ex, batch, attention_.forward(ex, batch, std::move(s.attention.x), s.attention), s.mlp);
      ex.meter.recomputing = false;
    }
    return attention_.backward(ex, batch, mlp_.backward(ex, batch, std::move(dy), s.mlp, grads), s.attention, grads);
  }

  void weight_gradients(Exec& ex, const parallel::Batch& batch, Saved& s, parallel::GradSink& grads) {
    mlp_.weight_gradients(ex, batch, s.mlp, grads);
    attention_.weight_gradients(ex, batch, s.attention, grads);
  }

  /// Returns the store's group that contains all parameters of the block.
  int group() const { return group_; }
  /// Returns the number of local columns of keys (and of values), for the cache.
  int64_t kv_width() const { return attention_.inner().kv_width(); }

 private:
  int group_;
  config::Recompute recompute_;
  Branch<parallel::Attention> attention_;
  Branch<parallel::Mlp> mlp_;
};

}  // namespace trainer::model
