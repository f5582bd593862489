#pragma once
// The optimizer on device memory: one canonical AdamW pass over every group's flat space.
#include "config/config.h"
#include "ops/adamw.h"
#include "params/param_store.h"

namespace trainer::optim {

/// Returns the host scalars of update number t (1-based; skipped steps do not count), in double.
/// Reference: Loshchilov & Hutter 2019, algorithm 2, with bias corrections folded into step and denominator.
ops::AdamWScalars adamw_scalars(const config::Optim& optim, double lr, int64_t t, double gradient_scale, bool decay);

class AdamW {
 public:
  /// Cuts each group into ranges of equal decay, so that a pass is few calls.
  explicit AdamW(const params::ParamStore& store);
  /// Updates master weights, moments and compute weights. With ZeRO-1 each replica updates what it owns and gathers it
  /// to the others while it updates the next group. All gathers have ended on return.
  void step(Exec& ex, params::ParamStore& store, const config::Optim& optim, double lr, int64_t t,
            double gradient_scale);

 private:
  struct Range {
    int group;
    int64_t offset, count;
    bool decay;
  };
  std::vector<Range> ranges_;          // by group
  std::vector<comm::Ticket> gathers_;  // by group
};

}  // namespace trainer::optim
