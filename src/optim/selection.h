#pragma once
// Selection: the parameters that one rule updates, as ranges of each group's flat buffer.
#include <functional>
#include <vector>

#include "params/param_table.h"

namespace trainer::optim {

/// The classes of parameters, whose learning rates and weight decay may differ: matrices of the blocks, tables, the
/// matrix of the head, and gains and biases. A tied table is an embedding.
enum class ParamClass : uint8_t { hidden, embedding, head, vector };
inline constexpr size_t kClasses = 4;
ParamClass class_of(const params::ParamTable& table, params::SlotId slot);

/// The ranges are of one class each, so that an update needs few kernel calls. Padding belongs to the slot before
/// it, so that tensors written together with the weights, such as copies in a different type, are written completely.
class Selection {
 public:
  /// Selects the slots for which `takes` returns true.
  Selection(const params::ParamTable& table, const std::function<bool(params::SlotId)>& takes);
  /// Selects everything.
  explicit Selection(const params::ParamTable& table) : Selection(table, [](params::SlotId) { return true; }) {}

  /// Calls fn(chunk, class) for the part of each range that is within `part`, in order.
  template <typename F>
  void each(int group, comm::Chunk part, F&& fn) const {
    for (const Range& range : ranges_[static_cast<size_t>(group)]) {
      const comm::Chunk inside = params::overlap(range.chunk, part);
      if (inside.count > 0) fn(inside, range.of);
    }
  }
  /// Returns the ranges of each group without regard to classes, as few as possible.
  std::vector<std::vector<comm::Chunk>> chunks() const;

 private:
  struct Range {
    comm::Chunk chunk;
    ParamClass of;
  };
  std::vector<std::vector<Range>> ranges_;  // by group
};

}  // namespace trainer::optim
