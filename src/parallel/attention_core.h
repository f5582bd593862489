#pragma once
// The core of a layer's attention: the context of queries, given q, k and v in the spread of attention.
#include <memory>

#include "ops/attention.h"
#include "parallel/strategy.h"

namespace trainer::parallel {

/// Queries, keys and values of this rank's rows and heads: [n, A·D], [n, K·D], [n, K·D].
struct Heads {
  Tensor q, k, v;
};

/// Computes the context on a rank that has all keys and values of its sequences and heads. Derived classes exchange
/// those of sequences that ranks share.
class AttentionCore {
 public:
  struct Saved {
    Scratch context;  // [n, A·D]
    Scratch lse;      // [b·A, S] accumulator type; [calls][b·A, queries of a call] where a pass makes several
  };
  /// Rows are split along the rows of layer.attention, heads along its columns. If there are more ranks than key/value
  /// heads, several ranks hold the same key/value head.
  AttentionCore(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec);
  virtual ~AttentionCore() = default;

  /// Sets `saved`. In generation, first appends keys and values to the caches, and stores no log-sum-exps.
  virtual void forward(Exec& ex, const Batch& batch, const Heads& x, Saved& saved);
  /// Returns the gradients of q ‖ k ‖ v, [n, (A+2K)·D], given that of the context [n, A·D]. Both passes of derived
  /// classes join their collectives before they return; all ranks that share sequences must call them.
  virtual Scratch backward(Exec& ex, const Batch& batch, const Tensor& dcontext, const Heads& x, const Saved& saved);

  /// Returns the elements of `all`, one of the batch's tensors [N], for this rank's rows of q, k and v; empty if `all`
  /// is empty.
  Tensor own_rows(const Batch& batch, const Tensor& all) const {
    return all ? rows_of(all, ranks_.tile({batch.cut ? rows_ : AxisSet{0}, 0}, batch.rows(), 1)) : Tensor();
  }
  int64_t head_dim() const { return op_.shape.head_dim; }
  int64_t query_width() const { return op_.shape.heads * head_dim(); }
  int64_t key_width() const { return op_.shape.kv_heads * head_dim(); }

 protected:
  /// Returns the operation on whole sequences, or on this rank's rows of shared ones, without its results.
  ops::AttentionForward op(const Batch& batch, const Heads& x) const;
  const Ranks& ranks() const { return ranks_; }
  AxisSet context() const { return context_; }

 private:
  const Ranks ranks_;
  const AxisSet rows_, context_;  // axes that split rows, and those among them whose ranks share sequences
  ops::AttentionForward op_;      // members that all batches share
};

/// Creates the core of a layer: AttentionCore, or one of its derived classes if ranks share sequences.
std::unique_ptr<AttentionCore> attention_core(const Ranks& ranks, const sharding::Layer& layer, const LayerSpec& spec);

}  // namespace trainer::parallel
