#pragma once
// PhaseClock: the times of a step's phases.
#include <string_view>

#include "base/clock.h"
#include "train/trainer.h"

namespace trainer::train {

/// Charges the time since the last call to a phase. Waits for the GPU first, so its work is charged to the phase that
/// launched it; with `ahead` it does not, so that the work of the next phases is launched before that of this one ends.
class Trainer::PhaseClock {
 public:
  PhaseClock(device::Device& device, PhaseMs& phases, Trace* trace) : device_(device), phases_(phases), trace_(trace) {}
  void charge(double PhaseMs::*phase, bool ahead = false) {
    if (!ahead) device_.synchronize();
    const double now = now_seconds();
    phases_.*phase += (now - last_) * 1e3;
    if (trace_ != nullptr) trace_->add({.name = name_of(phase), .time = {last_, now}});
    last_ = now;
  }
  /// Returns the time of the last call.
  double last() const { return last_; }
  /// Adds the phases since `begin` to the trace as one activity; `title` must live as long as the trace.
  void name(std::string_view title, double begin) {
    if (trace_ != nullptr) trace_->add({.name = title, .time = {begin, last_}});
  }

 private:
  static std::string_view name_of(double PhaseMs::*phase) {
    if (phase == &PhaseMs::data) return "data";
    if (phase == &PhaseMs::forward) return "forward";
    return phase == &PhaseMs::backward ? "backward" : "update";  // the trace uses "optimizer" for the operator
  }

  device::Device& device_;
  PhaseMs& phases_;
  Trace* trace_;
  double last_ = now_seconds();
};

}  // namespace trainer::train
