#pragma once
// AdamW with its state in device memory: one pass over every group's flat buffer.
#include "config/config.h"
#include "ops/adamw.h"
#include "optim/decay_ranges.h"
#include "optim/optimizer.h"

namespace trainer::optim {

/// Returns the scalars of an update, computed on the host in double precision.
/// Reference: Loshchilov & Hutter 2019, algorithm 2, with the bias corrections folded into step size and denominator.
ops::AdamWScalars adamw_scalars(const config::Optim& optim, const Update& update, bool decay);

class AdamW final : public Optimizer {
 public:
  /// `store` and `optim` must outlive this object. `round_gradients` rounds gradients to bf16 first, to match runs that
  /// send gradients to the host in bf16.
  AdamW(params::ParamStore& store, const config::Optim& optim, bool round_gradients = false);
  /// Updates master weights, moments and compute weights. With ZeRO-1 each replica updates its own chunk; the chunks'
  /// all-gather overlaps with the update of the next group. On return all gathers are complete.
  void step(Exec& ex, const Update& update) override;

 private:
  params::ParamStore& store_;
  const config::Optim& optim_;
  const bool round_gradients_;
  DecayRanges ranges_;
  std::vector<comm::Ticket> gathers_;  // by group
};

}  // namespace trainer::optim
