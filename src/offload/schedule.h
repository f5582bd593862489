#pragma once
// The update of one step as a list of operations, made by a pure function. The same list is executed (lanes.h), timed
// on a virtual clock (clock.h), counted, and searched for missing waits (tests/unit/offload/races.h).
//
// Each operation belongs to a lane. A lane does its operations in the order of the list, one after the other. An
// operation also waits for those named in `after`, which come earlier in the list, and for moments of the step:
//   - `gradient`: the gradient of its group is complete.
//   - `room`: the backward pass has ended, and slots may use the memory of activations.
//   - `scalars`: the norm is known.
// No wait is named twice: what lanes and other waits imply is left out. Steps follow each other: no operation begins
// before the list of the step before is done. What a step leaves for the next is in slots alone.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "offload/plan.h"

namespace trainer::offload {

enum class Kind : uint8_t {
  flush,          // the subgroup's gradient, from the device to the host
  load,           // master weights and moments, from the host to a slot
  update_device,  // in a slot, and of the compute weights
  drain,          // a slot, to the host
  update_host,    // in host memory; compute weights of another type go to a bounce buffer
  refresh         // compute weights, from the host to the device
};
inline constexpr int kKinds = 6;
enum class Lane : uint8_t { to_host, to_device, refresh, device, host };
inline constexpr int kLanes = 5;
std::string_view name_of(Kind kind);
std::string_view name_of(Lane lane);
Lane lane_of(Kind kind);
/// Says whether compute weights on the device are new when such an operation is done.
constexpr bool makes_weights(Kind kind) { return kind == Kind::refresh || kind == Kind::update_device; }

/// Host buffers for compute weights on their way to the device, where they are of another type than the master weights.
inline constexpr int kBounces = 3;

struct Operation {
  Kind kind = Kind::flush;
  int subgroup = 0;
  int slot = -1;                                         // of load, update_device and drain
  int bounce = -1;                                       // of update_host and refresh
  std::vector<int> after;                                // places in the list
  bool gradient = false, room = false, scalars = false;  // the last implies the others
  Lane lane() const { return lane_of(kind); }
};

/// What the slots hold: a subgroup whose newest state is there alone, or -1. Resident subgroups have a slot each, which
/// come after those for streaming.
using Held = std::vector<int>;

struct Schedule {
  std::vector<Operation> operations;
  Held held;  // afterwards
};

/// What a list is made for.
struct Situation {
  std::span<const Place> places;  // by subgroup
  int slots = 0;                  // for streaming
  config::OffloadOrder order = config::OffloadOrder::forward;
  bool backwards = false;  // zigzag: every second step
  bool blocking = false;
  bool early = false;           // updates begin with their gradient instead of the norm, in the order of arrival
  bool share = false;           // slots for streaming are in the memory of activations
  bool bounce = false;          // compute weights are of another type than the master weights
  Held held = {};               // empty: nothing
  std::vector<char> done = {};  // by subgroup: has its update already; empty: none has
};
Schedule schedule(const Situation& situation);

/// Operations that bring home what slots hold.
Schedule homecoming(const Situation& situation);

/// Seconds at work by kind of operation.
using Seconds = std::array<double, kKinds>;

/// Bytes of an element of the state (one of p, m, v), of compute weights, of gradients.
struct Sizes {
  int64_t state = 4, compute = 2, gradient = 4;
};
/// Bytes between host and device by what they are.
using Bytes = std::array<int64_t, kKinds>;  // 0 for updates
int64_t bytes_of(Kind kind, int64_t elements, const Sizes& sizes);
Bytes bytes_of(const Schedule& schedule, std::span<const Subgroup> subgroups, const Sizes& sizes);

}  // namespace trainer::offload
