#include "train/micro_graphs.h"

namespace trainer::train {

MicroGraphs::MicroGraphs(device::Device& device, const config::Config& config, bool communicates,
                         bool last_communicates)
    : device_(device) {
  if (!config.train.cuda_graph) return;
  if (device.kind() != device::Kind::cuda) {
    text_ = "none: the device is a CPU";
  } else if (config.model.dropout > 0) {
    text_ = "none: model.dropout draws its masks by the number of the step, which kernels are told when they start";
  } else if (communicates) {
    text_ = "none: ranks communicate within micro-steps, and each operation is watched from its start";
  } else if (last_communicates) {
    some_ = true;
    text_ = "every micro-step but the last of a step, in which ranks communicate";
  } else {
    some_ = last_ = true;
    text_ = "every micro-step";
  }
}

void MicroGraphs::run(const Exec& ex, const Kind& kind, const std::function<void(bool recorded)>& work,
                      const std::function<void()>& catch_up) {
  if (!some_ || (kind.last && !last_) || ex.meter.timed != nullptr) {
    work(false);
    return;
  }
  Slot& slot = slots_[{kind.first, kind.last}];
  if (slot.loss_scale != kind.loss_scale || slot.memory != ex.arena.memory())
    slot = {.loss_scale = kind.loss_scale, .memory = ex.arena.memory()};
  if (slot.runs++ == 0) {
    work(false);
    return;
  }
  if (slot.graph == nullptr) {
    try {
      slot.graph = device_.record([&] { work(true); });
    } catch (Error& error) {
      error.add_context("while a micro-step was recorded; train.cuda_graph = false runs without records");
      throw;
    }
  } else {
    catch_up();
    ++replays_;
  }
  slot.graph->run();
}

}  // namespace trainer::train
