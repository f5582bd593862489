#pragma once
// The order of a step's passes, as data: a list of actions for each stage. The trainer runs its stage's list, a plan
// records each kind of action in it once, and the planner simulates all lists. A new schedule is a generator in
// pipeline.cpp; all else follows from its lists.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sharding/sharding.h"

namespace trainer::sharding {

enum Pass : uint8_t { kForward = 1, kBackward = 2, kWeights = 4 };

/// The passes of a micro-batch through a chunk of the model that one program runs, one after another. A backward pass
/// computes weight gradients, too, unless a later action does (kWeights).
struct Action {
  uint8_t passes = 0;  // a set of Pass
  int32_t micro = 0, chunk = 0;
  bool has(Pass pass) const { return (passes & pass) != 0; }
  bool operator==(const Action&) const = default;
};
using ActionLists = std::vector<std::vector<Action>>;  // by stage
/// Returns the passes and the chunk: "F 0", "FB 1".
std::string text_of(const Action& action);
/// Returns the passes and the micro-batch, with several chunks per stage also the chunk: "F 3", "F 3.1".
std::string title_of(const Action& action, const Stages& stages);

/// Returns the lists of a step. One stage runs forward and backward pass of each micro-batch together. With several
/// chunks per stage, the micro-batches must be a multiple of the stages, and the schedule 1f1b.
ActionLists lists_of(const Stages& stages, int64_t micro_batches);
/// Returns the list of one stage.
std::vector<Action> list_of(const Stages& stages, int64_t micro_batches, int64_t stage);

/// Returns the lists of only the forward passes, of any number of micro-batches, in the order of lists_of().
ActionLists forward_lists(const Stages& stages, int64_t micro_batches);

/// A message from one chunk to a neighbouring one: the forward pass sends x to the next chunk, the backward pass dx to
/// the previous one. An action receives at most one message, before it begins, and sends at most one.
struct Message {
  int32_t micro = 0, from = 0, to = 0;  // chunks
  bool operator==(const Message&) const = default;
};
std::optional<Message> received_by(const Action& action, const Stages& stages);
std::optional<Message> sent_by(const Action& action, const Stages& stages);

/// Checks that lists can run; internal error otherwise.
///   1. Each stage runs every pass of every micro-batch through its chunks once: forward, backward, weight gradients.
///   2. A pass through a chunk runs for micro-batches in ascending order, as if there were one stage.
///   3. Messages from a stage to another, x or dx, are received in the order in which they are sent.
///   4. The lists end, with the buffers of simulate().
///   5. No more micro-batches are in flight than with 1f1b, and at most `count` wait for their weight gradients.
void check(const ActionLists& lists, const Stages& stages, int64_t micro_batches);

/// Returns when each stage's list ends, in seconds from the start. `seconds`: of an action, without waiting; `hop`: of
/// a message. Links have one buffer at each end. When an action begins, the next one's receive is posted, as soon as
/// its buffer is free; after it, its message is copied to the send buffer, as soon as the previous one has left.
std::vector<double> simulate(const ActionLists& lists, const Stages& stages,
                             const std::function<double(const Action&)>& seconds, double hop = 0);

/// The frames of memory of a list (tensor/arena.h). The programs of a micro-batch in a chunk are a sequence; a pool has
/// what is taken in its first program and released in its second, from first to third, and from second to third.
struct Frames {
  using PerPool = std::array<int64_t, 3>;
  PerPool counts = {};         // the most frames that are in use at the same time
  std::vector<PerPool> slots;  // by action: the frames in which its sequence begins or continues
};
Frames frames_of(const std::vector<Action>& list);

/// Returns the number of layers of each chunk, in model order. `costs`: by layer; `head`: the cost of the last chunk
/// without layers. The largest cost of a chunk is as small as possible, then the sum of squared costs; then later
/// chunks, which hold fewer micro-batches, have more layers. Only the first and the last chunk may be empty.
std::vector<int64_t> split_layers(std::span<const double> costs, double head, int64_t chunks);

/// The actions of a list that run the same operators: the same passes through the same chunk. Those of the first
/// micro-batch overwrite gradients and gather kept weights, those of the last one start reductions.
struct ActionKind {
  uint8_t passes = 0;
  int32_t chunk = 0;
  bool first = false, last = false;
  bool operator==(const ActionKind&) const = default;
};
ActionKind kind_of(const Action& action, int64_t micro_batches);

}  // namespace trainer::sharding
