#pragma once
// One transformer block: attention and the MLP, each a branch of the residual stream, one after the other or both from
// the same x.
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
        parallel_(has_parallel_residual(spec.model)),
        attention_(strategy, spec, "norm1", "attn_out", &parallel::Strategy::attention),
        mlp_(strategy, spec, "norm2", "mlp_out", &parallel::Strategy::mlp) {}

  /// Maps x [n, H] to [n, H]. Sets `s` for the backward pass if batch.keep.
  Scratch forward(Exec& ex, const parallel::Batch& batch, Scratch x, Saved& s) {
    Scratch y;
    if (parallel_) {
      const Scratch first = attention_.forward(ex, batch, x.tensor(), s.attention);
      y = mlp_.forward(ex, batch, x.tensor(), s.mlp, {.onto = first, .stats = &s.attention.stats});
      if (batch.keep) s.attention.x = std::move(x);
    } else {
      y = mlp_.forward(ex, batch, attention_.forward(ex, batch, std::move(x), s.attention), s.mlp);
    }
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
      parallel::Operand x = std::move(s.attention.x);
      if (parallel_) {
        attention_.rebuild(ex, batch, std::move(x), s.attention);
        mlp_.rebuild(ex, batch, s.attention.x.x, s.mlp, &s.attention.stats);
      } else {
        mlp_.rebuild(ex, batch, attention_.forward(ex, batch, std::move(x), s.attention), s.mlp);
      }
      ex.meter.recomputing = false;
    }
    if (!parallel_)
      return attention_.backward(ex, batch, mlp_.backward(ex, batch, std::move(dy), s.mlp, grads), s.attention, grads);
    const Scratch d = mlp_.backward(ex, batch, dy.tensor(), s.mlp, grads, {.stats = &s.attention.stats});
    return attention_.backward(ex, batch, std::move(dy), s.attention, grads, {.onto = d});
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
  bool parallel_;
  Branch<parallel::Attention> attention_;
  Branch<parallel::Mlp> mlp_;
};

}  // namespace trainer::model
