#include "train/micro_graphs.h"

#include "config/config.h"

namespace trainer::train {

MicroGraphs::MicroGraphs(device::Device& device, const config::Config& config, bool communicates,
                         bool last_communicates)
    : device_(device) {
  if (!config.train.cuda_graph) return;
  if (device.kind() != device::DeviceKind::cuda) {
    text_ = "none: the device is a CPU";
  } else if (config.offload.optimizer != config::OffloadOptimizer::none) {
    text_ =
        "none: with optimizer offload, each gradient is copied to the host as soon as the backward pass completes it";
  } else if (config.model.n_expert > 0) {
    text_ = "none: experts need row counts on the host";
  } else if (config.parallel.stages > 1) {
    text_ = "none: stages exchange messages between micro-steps";
  } else if (config.model.dropout > 0) {
    text_ = "none: the masks of model.dropout depend on the step number, a kernel argument";
  } else if (communicates) {
    text_ = "none: ranks communicate within micro-steps";
  } else if (last_communicates) {
    some_ = true;
    text_ = "every micro-step except the last of a step, in which ranks communicate";
  } else {
    some_ = last_ = true;
    text_ = "every micro-step";
  }
}

MicroGraphs::Next MicroGraphs::next(const Exec& ex, const Kind& kind) {
  if (!some_ || (kind.last && !last_) || ex.meter.timed != nullptr) return Next::launch;
  Slot& slot = slot_of(kind);
  if (slot.memory != ex.arena.memory()) slot = {.memory = ex.arena.memory()};
  if (slot.runs++ == 0) return Next::launch;
  if (slot.graph == nullptr) return Next::record;
  ++replays_;
  return Next::repeat;
}

void MicroGraphs::record(const Kind& kind, const std::function<void()>& work) {
  try {
    slot_of(kind).graph = device_.record(work);
  } catch (Error& error) {
    error.add_context("while capturing a micro-step (set train.cuda_graph = false to run without graphs)");
    throw;
  }
}

void MicroGraphs::run(const Kind& kind) { slot_of(kind).graph->run(); }

}  // namespace trainer::train
