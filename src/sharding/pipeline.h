#pragma once
// The order of a step's passes, as data. The trainer runs its list; a plan records each kind of action in it once.
#include <cstdint>
#include <vector>

namespace trainer::sharding {

enum Pass : uint8_t { kForward = 1, kBackward = 2 };

/// The passes of a micro-batch through a chunk of the model that one program runs, one after another.
struct Action {
  uint8_t passes = 0;  // a set of Pass
  int32_t micro = 0, chunk = 0;
  bool operator==(const Action&) const = default;
};
using ActionLists = std::vector<std::vector<Action>>;  // by stage

/// Returns the lists of a step: with one stage and one chunk, forward and backward pass of each micro-batch together.
ActionLists lists_of(int64_t micro_batches);

/// The actions of a list that run the same operators: the same passes through the same chunk. Those of the first
/// micro-batch overwrite gradients and gather kept weights, those of the last one start reductions.
struct ActionKind {
  uint8_t passes = 0;
  int32_t chunk = 0;
  bool first = false, last = false;
  bool operator==(const ActionKind&) const = default;
};
ActionKind kind_of(const Action& action, int64_t micro_batches);

/// Returns the kinds of a list with the number of their actions, in the order in which they begin.
struct Repeated {
  ActionKind kind;
  int64_t count = 0;
};
std::vector<Repeated> kinds_of(const std::vector<Action>& list, int64_t micro_batches);

}  // namespace trainer::sharding
