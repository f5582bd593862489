#pragma once
// Experts: the MLP of a layer with experts (mixture of experts). A router chooses k of E experts for each token:
//   l = x·R;  p = softmax(l);  c: the k largest of l;  w_j = p[c_j], with norm_topk divided by Σ_i p[c_i]
//   y = Σ_j (w_j · silu(x·G[c_j]) ∘ (x·U[c_j])) · D[c_j]  +  σ(x·v) · (silu(x·G') ∘ (x·U')) · D'
// The last term is the shared expert, if there is one. Weights are applied before D, so that y is a plain sum of rows,
// and the gradient of a weight is ⟨the gradient of w·a, a⟩.
//
// The n·k pairs (row, choice) are sorted by expert; each linear of all experts is one grouped GEMM. Tokens are never
// dropped, and no memory depends on the choices.
//
// The experts' linears and those of the shared expert are sharded as `up` and `down`, with all of a row of x and y:
// only y and dx are partial sums, over the ranks that have different columns of `up`. Router and v are sharded as `up`
// without its columns, so the ranks of these compute the same choices; one of them adds their part of dx.
//
// Along Layer::experts, ranks have different experts: they send each other rows (parallel/row_exchange.h). With uneven
// loads that takes several rounds; what the first one computes is saved, later ones compute it again in the backward
// pass. In generation, where all ranks have the same rows, each computes those of its experts.
//
// Rows of the loss: the balance loss of a layer is E·Σ f·P, with P the mean of p over rows, and f the share of an
// expert among the choices, a constant of the gradient, of the micro-step's rows on all replicas or of a sequence.
#include <map>

#include "parallel/mlp.h"
#include "parallel/routing.h"
#include "parallel/row_exchange.h"
#include "parallel/weights.h"

namespace trainer::parallel {

/// Views a vector as rows of one element.
inline Tensor column(const Tensor& x) { return x.reshape({x.count(), 1}); }

class Experts final : public Mlp {
 public:
  Experts(const Ranks& ranks, ParamStore& store, const LayerSpec& spec, const sharding::ModelSharding& sharding);

  void forward(Exec& ex, const Batch& batch, Operand x, Saved& saved) override;
  Scratch output(Exec& ex, const Batch& batch, const ForwardFusion& fusion, Saved& saved) override;
  Scratch backward(Exec& ex, const Batch& batch, Operand dy, Saved& saved, GradSink& grads) override;
  Scratch input_gradient(Exec& ex, const Batch& batch, const Tensor& d, const Tensor& x, Saved& saved,
                         GradSink& grads) override;
  /// Does nothing: backward() and input_gradient() compute the gradients of weights, with batch.late, too.
  void weight_gradients(Exec&, const Batch&, const Tensor&, const Tensor&, const Tensor&, const Saved&,
                        GradSink&) override {}
  bool has_late_weight_gradients() const override { return false; }
  void forget(Saved& saved, config::Recompute recompute) const override;

 private:
  struct Shared {
    Weights up, down, gate;
  };
  /// The layouts of x [N, H] in the residual stream and in the linears.
  mesh::Layout home(Rows rows) const { return ranks_.layout(stream_, rows, width_); }
  mesh::Layout used(Rows rows) const { return ranks_.layout({.rows = up_.rows}, rows, width_); }
  /// Sets what backward() and input_gradient() need to know of the router; chooses again only if the saved choices are
  /// missing, so that recomputation cannot route differently.
  void route(Exec& ex, const Batch& batch, const Tensor& x, Routed& r);
  bool exchanges(const Batch& batch) const { return exchange_ && batch.cut; }
  enum class Counts : uint8_t { read, kept };
  /// Sets the rows of this rank's experts, of the first round, from the counts: waits for the device and reads them, or
  /// uses those that were read from the same memory before.
  void count_rows(Exec& ex, const Batch& batch, const Routed& r, Counts from);
  /// Sets the rows of this rank's experts in a round.
  void begin_round(int64_t round);
  /// Returns the rows of x for this rank's experts, sorted, [n·k, H] of which total_ are set; without an exchange.
  Scratch sorted(Exec& ex, const Tensor& x, const Routed& r) const;
  /// Returns the weights of this rank's experts' rows; `memory` holds them if they are not saved.
  Tensor weights_of_rows(Exec& ex, const Routed& r, Scratch& memory) const;
  /// Returns the rows [n·k, H] of all experts, sorted, given those of this rank's in the first round, and runs the
  /// other rounds.
  Scratch all_outputs(Exec& ex, const Batch& batch, Routed& r, Scratch&& y);
  /// Runs the other rounds of the backward pass, which set their rows of the sorted gradients of x.
  void run_backward_rounds(Exec& ex, const Tensor& x, const Tensor& dw_up, Routed& r, const Tensor& dx);
  void activate(Exec& ex, Saved& saved) const;
  /// Compute z and the gradients of pre, in its place, and of the weights, of the first `total_` rows.
  void activate(Exec& ex, const Tensor& pre, const Tensor& weights, const Tensor& z) const;
  void activation_gradient(Exec& ex, const Tensor& dz, const Tensor& pre, const Tensor& weights,
                           const Tensor& dweights) const;
  /// Copies the rows of this rank's experts to their places among all sorted rows; all other rows become 0.
  void scatter_own(Exec& ex, const Tensor& own, const Tensor& sorted);
  void activate_shared(Exec& ex, Routed& r) const;
  /// Starts to sum x over ranks; returns a closed ticket if there is one rank.
  comm::Ticket start_sum(Exec& ex, AxisSet axes, const Tensor& x) const;
  /// Starts to sum the counts over the ranks whose rows f of the balance loss is over.
  comm::Ticket start_counting(Exec& ex, const Batch& batch, int64_t own_rows, const Routed& r) const;
  /// Computes dlogits and adds this rank's terms to Batch::routing.
  Scratch route_backward(Exec& ex, const Batch& batch, const Routed& r) const;
  bool counts_by_sequence(const Batch& batch) const { return batch.routing != nullptr && batch.routing->per_sequence; }

  const Ranks ranks_;
  ParamStore& store_;
  const Spread stream_;
  const AxisSet divided_;  // ranks along these axes have different experts
  const sharding::LinearSharding up_, down_;
  const int64_t width_, experts_, chosen_;  // H, E, k
  const bool normalize_;
  const ops::Activation act_;
  const int64_t index_;     // the number of the layer among those with experts
  const AxisSet replicas_;  // along which ranks have different sequences
  const bool reports_;      // this rank counts its rows, among those that hold the same ones
  const bool adds_router_;  // this rank adds the router's part of dx
  std::optional<Weights> router_;
  params::SlotId experts_up_ = -1, experts_down_ = -1;  // [E·H, 2F] gate ‖ up and [E·F, H]; F: this rank's
  std::optional<Shared> shared_;
  std::map<const std::byte*, HostCopy> on_host_;  // counts that the forward pass read, by their address on the device
  std::optional<RowExchange> exchange_;  // its plan belongs to the pass that runs, its count of bytes to several
  // The following members belong to the pass that runs.
  std::vector<int64_t> counted_;   // by expert: rows of this rank's tokens
  std::span<const int64_t> rows_;  // by this rank's experts: rows of the grouped GEMMs
  int64_t first_ = 0, total_ = 0;  // the first of these rows among the sorted ones, and their number
  std::vector<int32_t> own_rows_;
  Tensor dw_down_;  // the gradient of D, which input_gradient() completes
  std::optional<params::WeightCache::Held> held_up_, held_down_;
};

}  // namespace trainer::parallel
