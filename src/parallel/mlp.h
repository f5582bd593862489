#pragma once
// The MLP of one layer. Plain: down(act(up(x))). Gated: down(act(gate(x)) ∘ up(x)), with gate ‖ up in one linear.
#include "parallel/strategy.h"

namespace trainer::parallel {

/// Returns the activation of the MLPs as operators call it.
ops::Activation operator_activation(const config::Model& model);
/// Return the halves of gate ‖ up.
inline Tensor gate_of(const Tensor& pre) { return pre.col_range(0, pre.cols() / 2); }
inline Tensor up_of(const Tensor& pre) { return pre.col_range(pre.cols() / 2, pre.cols() / 2); }

/// The tensors that a layer with k of E experts per token saves for its n rows. Logits, log-sum-exps,
/// weights and their gradients have the accumulator type; choices, counts, orders are i32; rows have the compute type.
struct Routed {
  Scratch logits, lse;   // [n, E], [n] of the router
  Scratch choices;       // [n, k] the experts of a row; all that `full` recomputation keeps
  Scratch weights;       // [n, k] their weights
  Scratch counts;        // [sequences or 1, E] how often each expert was chosen
  Scratch order, place;  // [n·k] the pairs (row, choice) by expert, and the inverse permutation
  // Only if several ranks divide the experts; R: the rows that their exchange moves at most.
  Scratch all_counts;         // [ranks · lines of counts, E] counts of all ranks; kept under `full`
  Scratch rows, row_weights;  // [R, H], [R, 1] the rows of this rank's experts in the first round, and their weights
  std::optional<Operand> x;   // from forward() to output(): the input, for later rounds
  std::optional<Operand> dy;  // from backward() to input_gradient()
  Scratch sorted_dweights;    // [n·k, 1], likewise
  Scratch dweights;  // [n·k], with a shared expert [n·(k + 1)], from backward() to input_gradient(): the gradients of
                     // weights, then of gates
  Scratch shared_pre, shared_z, shared_gate;  // the shared expert: [n, 2F], [n, F], [n, 1]
};

/// Has the same functions as Attention. N, F: this rank's.
class Mlp {
 public:
  struct Saved {
    Scratch pre;  // [N, F] the activation's input, or [N, 2F] gate ‖ up; with experts N·k rows or R rows, by expert
    Scratch z;    // [N, F] input of the down projection; rebuilt under `selective`
    Routed routed;
  };
  virtual ~Mlp() = default;

  virtual void forward(Exec& ex, const Batch& batch, Operand x, Saved& saved) = 0;
  virtual Scratch output(Exec& ex, const Batch& batch, const ForwardFusion& fusion, Saved& saved) = 0;
  virtual Scratch backward(Exec& ex, const Batch& batch, Operand dy, Saved& saved, GradSink& grads) = 0;
  virtual Scratch input_gradient(Exec& ex, const Batch& batch, const Tensor& d, const Tensor& x, Saved& saved,
                                 GradSink& grads) = 0;
  virtual void weight_gradients(Exec& ex, const Batch& batch, const Tensor& dy, const Tensor& d, const Tensor& x,
                                const Saved& saved, GradSink& grads) = 0;
  /// Returns true if the pass of weight_gradients() computes them; false if it has nothing to do.
  virtual bool has_late_weight_gradients() const = 0;
  virtual void forget(Saved& saved, config::Recompute recompute) const = 0;
};

class DenseMlp final : public Mlp {
 public:
  DenseMlp(Strategy& strategy, const LayerSpec& spec);

  void forward(Exec& ex, const Batch& batch, Operand x, Saved& saved) override;
  Scratch output(Exec& ex, const Batch& batch, const ForwardFusion& fusion, Saved& saved) override {
    return down_->forward(ex, batch.rows(), saved.z, fusion);
  }
  Scratch backward(Exec& ex, const Batch& batch, Operand dy, Saved& saved, GradSink& grads) override;
  Scratch input_gradient(Exec& ex, const Batch& batch, const Tensor& d, const Tensor& x, Saved&,
                         GradSink& grads) override {
    return up_->backward(ex, batch.rows(), d, x, {}, grads, batch.late);
  }
  void weight_gradients(Exec& ex, const Batch& batch, const Tensor& dy, const Tensor& d, const Tensor& x,
                        const Saved& saved, GradSink& grads) override {
    down_->weight_gradient(ex, batch.rows(), dy, saved.z, grads);
    up_->weight_gradient(ex, batch.rows(), d, x, grads);
  }
  bool has_late_weight_gradients() const override { return true; }
  void forget(Saved& saved, config::Recompute recompute) const override {
    saved.z.reset();
    if (recompute == config::Recompute::full) saved.pre.reset();
  }

 private:
  void activate(Exec& ex, Saved& saved) const;
  bool gated_;
  ops::Activation act_;
  std::unique_ptr<Linear> up_, down_;
};

}  // namespace trainer::parallel
