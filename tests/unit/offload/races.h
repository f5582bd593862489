#pragma once
// Finds missing and redundant waits in a list of operations by analysis, without running it.
#include <string>
#include <vector>

#include "base/format.h"
#include "offload/schedule.h"

namespace trainer::offload {

/// An object that operations read or write as a whole.
using Thing = std::pair<std::string, int>;
struct Access {
  Thing thing;
  bool writes;
};

/// Returns the memory that an operation uses. The gradient on the device and the norm are left out: the compute thread
/// writes them, and streams wait for it.
inline std::vector<Access> accesses_of(const Operation& op) {
  const Thing state{"state", op.subgroup}, gradient{"gradient on the host", op.subgroup}, slot{"slot", op.slot},
      bounce{"bounce", op.bounce}, weights{"weights", op.subgroup};
  std::vector<Access> all;
  switch (op.kind) {
    case OperationKind::flush:
      all = {{gradient, true}};
      break;
    case OperationKind::load:
      all = {{state, false}, {slot, true}};
      break;
    case OperationKind::update_device:
      all = {{slot, true}, {weights, true}};
      break;
    case OperationKind::drain:
      all = {{slot, true}, {state, true}};  // the slot's contents are invalid afterwards
      break;
    case OperationKind::update_host:
      all = {{gradient, true}, {state, true}};  // the gradient is invalid afterwards
      if (op.bounce >= 0) all.push_back({bounce, true});
      break;
    case OperationKind::refresh:
      all = {{weights, true}};
      if (op.bounce >= 0) {
        all.push_back({bounce, true});
      } else {
        all.push_back({state, false});
      }
      break;
  }
  return all;
}

/// Returns before[i][j]: operation j has finished when i begins.
inline std::vector<std::vector<char>> order_of(const Schedule& ops) {
  std::vector<std::vector<char>> before(ops.size(), std::vector<char>(ops.size()));
  std::array<int, kStreams> last;
  last.fill(-1);
  for (size_t i = 0; i < ops.size(); ++i) {
    std::vector<int> direct = ops[i].after;
    int& stream = last[static_cast<size_t>(ops[i].stream())];
    if (stream >= 0) direct.push_back(stream);
    stream = static_cast<int>(i);
    for (const int j : direct) {
      before[i][static_cast<size_t>(j)] = 1;
      for (size_t k = 0; k < ops.size(); ++k) before[i][k] |= before[static_cast<size_t>(j)][k];
    }
  }
  return before;
}

inline std::string text_of(const Operation& op) {
  return format("{} of subgroup {} (slot {}, bounce {})", name_of(op.kind), op.subgroup, op.slot, op.bounce);
}

/// Returns the pairs of unordered operations that access the same object, at least one of them writing it.
inline std::vector<std::string> races_of(const Schedule& ops) {
  const auto before = order_of(ops);
  std::vector<std::string> found;
  for (size_t i = 0; i < ops.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (before[i][j]) continue;
      for (const Access& a : accesses_of(ops[i]))
        for (const Access& b : accesses_of(ops[j]))
          if (a.thing == b.thing && (a.writes || b.writes))
            found.push_back(format("{} beside {}: {}", text_of(ops[i]), text_of(ops[j]), a.thing.first));
    }
  }
  return found;
}

}  // namespace trainer::offload
