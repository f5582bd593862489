#pragma once
// Optimizer: updates weights from complete gradients. AdamW (adamw.h) does this between two steps, in device memory.
// offload::Engine (offload/engine.h) does it concurrently with the steps, on host or device. Both round identically, so
// the weights are bitwise identical.
#include <cstdint>

#include "tensor/exec.h"

namespace trainer::optim {

/// The parameters of an update, the same for all elements and on every rank.
struct Update {
  double lr = 0;
  int64_t t = 1;              // number of the update, 1-based; skipped steps are not counted
  double gradient_scale = 1;  // clip factor
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Begins a step, before its first micro-step.
  virtual void begin_step() {}
  /// Announces that a group's gradient will be complete when the queued device work is done. Called in the order of the
  /// backward pass, once per group in every step that is not interrupted.
  virtual void gradient_complete(Exec&, int /*group*/) {}
  /// Updates the weights; the gradient norm is known and finite. Weights are updated on return, or at the latest when
  /// ParamStore returns them.
  virtual void step(Exec& ex, const Update& update) = 0;
  /// Ends the step without an update, since the gradients are unusable. Weights and moments stay as they are.
  virtual void discard() {}
};

}  // namespace trainer::optim
