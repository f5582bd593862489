#pragma once
// Optimizer: turns complete gradients into new weights. AdamW (adamw.h) does it between two steps, in the memory of the
// device. offload::Engine (offload/engine.h) does it beside the steps, wherever its plan says. Both round alike: the
// weights do not show which one did it, or where.
#include <cstdint>

#include "tensor/exec.h"

namespace trainer::optim {

/// What all elements of an update have in common; the same on every rank.
struct Update {
  double lr = 0;
  int64_t t = 1;              // number of the update, 1-based: skipped steps do not count
  double gradient_scale = 1;  // of clipping
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Begins a step, before its first micro-step.
  virtual void begin_step() {}
  /// Says that a group's gradient is complete once the device has done what it was given. Called in the order of the
  /// backward pass, for each group once a step, and by every step that is not interrupted.
  virtual void gradient_complete(Exec&, int /*group*/) {}
  /// Updates; the norm is known and finite. Weights are new on return, or when ParamStore hands them out.
  virtual void step(Exec& ex, const Update& update) = 0;
  /// Ends the step without an update: the gradients are of no use. Weights, moments and versions stay as they are.
  virtual void discard() {}
};

}  // namespace trainer::optim
