#include "sharding/pipeline.h"

#include <algorithm>

namespace trainer::sharding {

ActionLists lists_of(int64_t micro_batches) {
  ActionLists lists(1);
  for (int32_t micro = 0; micro < micro_batches; ++micro) lists[0].push_back({kForward | kBackward, micro});
  return lists;
}

ActionKind kind_of(const Action& action, int64_t micro_batches) {
  return {action.passes, action.chunk, action.micro == 0, action.micro + 1 == micro_batches};
}

std::vector<Repeated> kinds_of(const std::vector<Action>& list, int64_t micro_batches) {
  std::vector<Repeated> kinds;
  for (const Action& action : list) {
    const ActionKind kind = kind_of(action, micro_batches);
    auto found = std::ranges::find(kinds, kind, &Repeated::kind);
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {kind, 0});
    ++found->count;
  }
  return kinds;
}

}  // namespace trainer::sharding
