#pragma once
// Optimizer: updates weights from complete gradients. Those of make.h do so in device memory, between two steps or, on
// a CPU, during the next forward pass. offload::Engine (offload/engine.h) does so concurrently with the steps, on host
// or device. All round identically, so they produce bitwise identical weights.
#include <array>
#include <cstdint>

#include "tensor/exec.h"

namespace trainer::optim {

/// The values of Rule::agreed(t): an array, so that steps do not allocate memory.
using Agreed = std::array<double, 2>;

/// The parameters of an update, the same for all elements and on every rank.
struct Update {
  double lr = 0;
  int64_t t = 1;              // number of the update, 1-based; skipped steps are not counted
  double gradient_scale = 1;  // clip factor
  Agreed agreed = {};         // on every rank those of the first rank; 0 if no rule has any
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Begins a step, before its first micro-step.
  virtual void begin_step() {}
  /// Announces that a group's gradient will be complete when the queued device work is done. Called in the order of the
  /// backward pass, once per group in each step, unless the step is interrupted.
  virtual void gradient_complete(Exec&, int /*group*/) {}
  /// Updates the weights; the gradient norm is known and finite. The update is complete on return, or at the
  /// latest when ParamStore returns the weights.
  virtual void step(Exec& ex, const Update& update) = 0;
  /// Ends the step without an update, since the gradients are unusable. Weights and states stay as they are.
  virtual void discard() {}
};

}  // namespace trainer::optim
