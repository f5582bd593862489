#pragma once
// MicroGraphs: a GPU's micro-steps as CUDA graphs (train.cuda_graph). The arena gives a micro-step the same addresses
// each time, so the arguments of its kernels stay valid for every micro-step of its kind. The first of a kind is
// launched as usual, since libraries choose algorithms and allocate memory in it. The second is recorded, and from then
// on the graph is replayed.
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "config/config.h"
#include "tensor/exec.h"

namespace trainer::train {

class MicroGraphs {
 public:
  /// The conditions, other than the data, on which kernels of a micro-step depend.
  struct Kind {
    bool first = false, last = false;  // of the step: the first overwrites gradients; the last starts reductions
    double loss_scale = 1;
  };

  /// `communicates`: true if ranks communicate within micro-steps before the last one, and within the last one.
  MicroGraphs(device::Device& device, const config::Config& config, bool communicates, bool last_communicates);

  /// Returns a log line: why there are no graphs, or which micro-steps run as graphs. Empty if they are not enabled.
  const std::string& text() const { return text_; }

  /// The way in which the next micro-step of this kind runs on the device.
  enum class Next {
    launch,  // no graph: if operators are timed, in the first of a kind and after its loss scale has changed
    record,  // record() its kernels, then run()
    repeat,  // run()
  };
  Next next(const Exec& ex, const Kind& kind);
  /// Captures the kernels that `work` launches. Its errors mention the capture.
  void record(const Kind& kind, const std::function<void()>& work);
  /// Replays the graph of this kind.
  void run(const Kind& kind);
  /// Returns the number of micro-steps that ran as a graph.
  int64_t replays() const { return replays_; }

 private:
  struct Slot {
    double loss_scale = 0;
    int64_t runs = 0;  // since the scale or the memory changed
    const std::byte* memory = nullptr;
    std::unique_ptr<device::Graph> graph;
  };
  Slot& slot_of(const Kind& kind) { return slots_[{kind.first, kind.last}]; }

  device::Device& device_;
  std::string text_;
  bool some_ = false, last_ = false;
  std::map<std::pair<bool, bool>, Slot> slots_;
  int64_t replays_ = 0;
};

}  // namespace trainer::train
