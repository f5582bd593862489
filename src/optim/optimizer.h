#pragma once
// Optimizer: turns complete gradients into updated weights. AdamW (adamw.h) does this between two steps, in device
// memory. offload::Engine (offload/engine.h) does it concurrently with the steps, on host or device. Both round
// identically, so the weights are bitwise identical.
#include <cstdint>

#include "tensor/exec.h"

namespace trainer::optim {

/// Parameters common to all elements of an update; the same on every rank.
struct Update {
  double lr = 0;
  int64_t t = 1;              // number of the update, 1-based: skipped steps do not count
  double gradient_scale = 1;  // from clipping
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Begins a step, before its first micro-step.
  virtual void begin_step() {}
  /// Announces that a group's gradient is complete once the queued device work is done. Called in the order of the
  /// backward pass, once per group and step, by every step that is not interrupted.
  virtual void gradient_complete(Exec&, int /*group*/) {}
  /// Updates the weights; the norm is known and finite. Weights are updated on return, or when ParamStore hands them
  /// out.
  virtual void step(Exec& ex, const Update& update) = 0;
  /// Ends the step without an update: the gradients are unusable. Weights, moments and versions stay as they are.
  virtual void discard() {}
};

}  // namespace trainer::optim
