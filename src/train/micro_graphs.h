#pragma once
// MicroGraphs: a GPU's micro-steps as CUDA graphs (train.cuda_graph). The arena returns the same addresses in every
// micro-step, so kernel arguments stay valid for all micro-steps of the same kind. The first micro-step of a kind is
// launched as usual, since libraries choose algorithms and allocate memory in it. The second is captured, and from then
// on the graph is replayed.
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "config/forward.h"
#include "tensor/exec.h"

namespace trainer::train {

class MicroGraphs {
 public:
  /// The conditions on which a micro-step's kernels depend; all that depends on the data is on the device.
  struct Kind {
    bool first = false, last = false;  // in the step: the first overwrites gradients, the last starts reductions
  };

  /// `communicates`: ranks communicate within micro-steps other than the last one; `last_communicates`: within the last
  /// one.
  MicroGraphs(device::Device& device, const config::Config& config, bool communicates, bool last_communicates);

  /// Returns a log line: why there are no graphs, or which micro-steps run as graphs. Empty if graphs are not enabled.
  const std::string& text() const { return text_; }

  /// The way in which the next micro-step of a kind runs on the device.
  enum class Next {
    launch,  // without a graph: the first of a kind, or if operators are timed
    record,  // capture the kernels with record(), then run()
    repeat,  // run()
  };
  Next next(const Exec& ex, const Kind& kind);
  /// Captures the kernels that `work` launches. Errors mention the capture.
  void record(const Kind& kind, const std::function<void()>& work);
  /// Replays the graph of this kind.
  void run(const Kind& kind);
  /// Returns the number of micro-steps that ran as a graph.
  int64_t replays() const { return replays_; }

 private:
  struct Slot {
    int64_t runs = 0;  // micro-steps since the memory changed
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
