#pragma once
// A branch of the residual stream: what attention or the MLP adds to it.
//   pre-norm:   x + dropout(inner(norm(x)))
//   post-norm:  x + dropout(norm(inner(x)))
//   both:       x + dropout(after(inner(before(x))))
// In a parallel block, both branches read the same x, and their sum is added to it.
#include "ops/activation.h"
#include "parallel/attention.h"
#include "parallel/mlp.h"

namespace trainer::model {

/// Inner: parallel::Attention or parallel::Mlp.
template <typename Inner>
class Branch {
 public:
  /// Activations saved for backward. Members that recomputation rebuilds are empty.
  struct Saved {
    parallel::Operand x;  // [n, H] this rank's part of the residual stream
    parallel::NormStats stats;
    Scratch normed;  // [n, H] the norm of x, rebuilt under `selective`
    typename Inner::Saved inner;
    Scratch raw;  // [n, H] the input of a norm after inner
    parallel::NormStats raw_stats;
    // With batch.late: the gradients of the outputs of inner's last and first linear.
    parallel::Operand dy;
    Scratch dinner;
  };
  /// The values that branches of a parallel block share, since both read the same x.
  struct Shared {
    Tensor onto = {};                      // [n, H] the result is added to it, not to x or dy; may be empty
    parallel::NormStats* stats = nullptr;  // statistics of x; null: those in Saved
  };

  /// `make` creates the inner part. `norm` and `dropout` are names, of parameters and of the mask; with two norms, the
  /// second one is called norm + "_post".
  Branch(parallel::Strategy& strategy, const parallel::LayerSpec& spec, const char* norm, const char* dropout,
         std::unique_ptr<Inner> (parallel::Strategy::*make)(const parallel::LayerSpec&))
      : before_(has_norms_before(spec.model) ? make_norm(strategy, spec, norm) : nullptr),
        after_(has_norms_after(spec.model) ? make_norm(strategy, spec, before_ ? std::string(norm) + "_post" : norm)
                                           : nullptr),
        inner_((strategy.*make)(spec)),
        dropout_{strategy.ranks(), strategy.stream(spec.layer), spec.model.d_model, spec.model.dropout,
                 spec.dropout_key(dropout)},
        recompute_(spec.recompute) {}

  /// Returns the residual stream after the branch. Sets `s` for the backward pass if batch.keep. A borrowed x must stay
  /// until then.
  Scratch forward(Exec& ex, const parallel::Batch& batch, parallel::Operand x, Saved& s, const Shared& shared = {}) {
    rebuild(ex, batch, std::move(x), s, shared.stats);
    const std::optional<ops::DropoutSite> dropout = dropout_.of(batch);
    Scratch y;
    if (!after_) {
      y = inner_->output(ex, batch, {.residual = shared.onto ? shared.onto : s.x.x, .dropout = dropout}, s.inner);
    } else {
      y = after_->forward(ex, s.raw, batch.keep ? &s.raw_stats : nullptr);
      if (!batch.keep) s.raw.reset();
      if (dropout)
        ops::run(ex, ops::DropoutAdd{y, s.x, y, *dropout, {}});
      else
        ops::run(ex, ops::Add{.x = y, .other = s.x, .y = y});
    }
    if (!batch.keep) s.x.reset();
    return y;
  }

  /// Sets `s` as forward() does, without computing the stream after the branch.
  void rebuild(Exec& ex, const parallel::Batch& batch, parallel::Operand x, Saved& s,
               parallel::NormStats* stats = nullptr) {
    s.x = std::move(x);
    parallel::Operand input(s.x.x);
    if (before_) {
      if (stats == nullptr) stats = &s.stats;
      s.normed = before_->forward(ex, s.x, batch.keep ? stats : nullptr);
      input = parallel::Operand(s.normed.tensor());
      if (!batch.keep || recompute_ == config::Recompute::selective) input = std::move(s.normed);
    }
    inner_->forward(ex, batch, std::move(input), s.inner);
    if (after_) s.raw = inner_->output(ex, batch, {}, s.inner);
  }

  /// Frees what recomputation rebuilds from x. With `full`, statistics stay if they cost an exchange, or a norm after
  /// inner, whose output is not rebuilt: they take a few bytes per row.
  void forget(Saved& s) const {
    if (recompute_ == config::Recompute::none) return;
    inner_->forget(s.inner, recompute_);
    if (recompute_ == config::Recompute::selective) return;
    s.normed.reset();
    s.raw.reset();
    if (before_ && !before_->is_split()) s.stats = {};
  }

  /// Returns the gradient of the residual stream before the branch, given that after it; with shared.onto, the sum of
  /// that and of the branch's part. Empties `s`; with batch.late, what weight_gradients() needs stays, which a borrowed
  /// dy must.
  Scratch backward(Exec& ex, const parallel::Batch& batch, parallel::Operand dy, Saved& s, parallel::GradSink& grads,
                   const Shared& shared = {}) {
    parallel::NormStats& stats = shared.stats != nullptr ? *shared.stats : s.stats;
    parallel::Operand d(dy.x);
    if (const std::optional<ops::DropoutSite> dropout = dropout_.of(batch)) {
      d = ex.take("dropout.dy", d.x.shape, d.x.dtype);
      ops::run(ex, ops::DropoutAdd{dy, {}, d, *dropout});
    }
    if (after_) {
      d = after_->backward(ex, d, s.raw, s.raw_stats, {}, grads);
      s.raw.reset();
      s.raw_stats = {};
    }
    Saved late;
    const bool is_late = batch.late && inner_->has_late_weight_gradients();
    if (is_late && d.owner) late.dy = std::move(d.owner);
    Scratch dinner = inner_->backward(ex, batch, std::move(d), s.inner, grads);
    if (before_ && !s.normed) s.normed = before_->forward(ex, s.x, &stats);
    Scratch dx = inner_->input_gradient(ex, batch, dinner, input_of(s), s.inner, grads);
    if (is_late) {
      late.dinner = std::move(dinner);
      late.inner = std::move(s.inner);
      if (before_)
        late.normed = std::move(s.normed);
      else
        late.x = std::move(s.x);
    }
    dinner.reset();
    s.normed.reset();
    if (before_)
      dx = before_->backward(ex, dx, s.x, stats, shared.onto ? shared.onto : dy.x, grads);
    else
      ops::run(ex, ops::Add{.x = dx, .other = dy, .y = dx});
    // A borrowed dy is of a parallel block, whose other branch owns it and keeps it until its weight_gradients().
    if (is_late && !late.dy.x) late.dy = std::move(dy);
    dy.reset();
    s = std::move(late);
    return dx;
  }
  /// Passes the gradients to the sink that backward() left. Empties `s`.
  void weight_gradients(Exec& ex, const parallel::Batch& batch, Saved& s, parallel::GradSink& grads) {
    inner_->weight_gradients(ex, batch, s.dy, s.dinner, input_of(s), s.inner, grads);
    s = {};
  }

  const Inner& inner() const { return *inner_; }

 private:
  static std::unique_ptr<parallel::Norm> make_norm(parallel::Strategy& strategy, const parallel::LayerSpec& spec,
                                                   const std::string& name) {
    return strategy.norm(spec.layer, spec.group, parallel::norm_of(spec.model, spec.name() + name));
  }
  /// Returns the input of inner's first linear.
  const Tensor& input_of(const Saved& s) const { return before_ ? s.normed.tensor() : s.x.x; }

  std::unique_ptr<parallel::Norm> before_, after_;  // null: none
  std::unique_ptr<Inner> inner_;
  parallel::StreamDropout dropout_;
  config::Recompute recompute_;
};

}  // namespace trainer::model
