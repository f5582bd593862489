#pragma once
// The update of one step as a list of operations, computed by a pure function. The same list is executed (streams.h),
// timed on a virtual clock (clock.h), counted, and searched for missing waits (tests/unit/offload/races.h).
//
// Each operation belongs to a stream. A stream runs its operations one after another, in the order of the list. An
// operation also waits for the earlier operations named in `after`. A flush waits until its group's gradient is
// complete, an update until the norm is known. Waits that streams and other waits imply are left out. No operation
// begins before the previous step's list is done. From one step to the next, only the residents' state stays in slots.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "offload/placement.h"
#include "optim/elementwise.h"

namespace trainer::offload {

enum class OperationKind : uint8_t {
  flush,          // copies the subgroup's gradient from the device to the host
  load,           // copies master weights and states from the host to a slot
  update_device,  // updates the state in a slot, and the compute weights
  drain,          // copies a slot to the host
  update_host,    // updates the state in host memory; writes compute weights of a different type to a bounce buffer
  refresh         // copies compute weights from the host to the device
};
inline constexpr int kOperationKinds = 6;
enum class Stream : uint8_t { to_host, to_device, refresh, device, host };
inline constexpr int kStreams = 5;
std::string_view name_of(OperationKind kind);
std::string_view name_of(Stream stream);
Stream stream_of(OperationKind kind);
/// True if the subgroup's compute weights on the device are up to date when such an operation is done.
constexpr bool makes_weights(OperationKind kind) {
  return kind == OperationKind::refresh || kind == OperationKind::update_device;
}
/// True if such an operation waits until the norm is known.
constexpr bool is_update(OperationKind kind) {
  return kind == OperationKind::update_host || kind == OperationKind::update_device;
}

/// Host buffers for compute weights on their way to the device, used if their type differs from the master weights'.
inline constexpr int kBounces = 3;

struct Operation {
  OperationKind kind = OperationKind::flush;
  int subgroup = 0;
  int slot = -1;           // for load, update_device and drain
  int bounce = -1;         // for update_host and refresh
  std::vector<int> after;  // indices in the list
  Stream stream() const { return stream_of(kind); }
};
using Schedule = std::vector<Operation>;

/// The inputs from which a list is computed.
struct Situation {
  std::span<const Residency> residencies;  // by subgroup
  int slots = 0;                           // slots for streaming; the residents' slots come after them
  bool blocking = false;
  bool bounce = false;  // the compute weights' type differs from the master weights'
  bool loaded = false;  // the residents' state is in their slots since an earlier step, and only there
};
Schedule schedule(const Situation& situation);

/// Returns the operations that copy the residents' state back to the host.
Schedule write_back(std::span<const Residency> residencies, int slots);

/// Busy seconds by kind of operation.
using Seconds = std::array<double, kOperationKinds>;

/// Bytes per element: of master weights, of the optimizer's states together, of compute weights, of gradients.
struct Sizes {
  int64_t master = 4, states = 8, compute = 2, gradient = 4;
  int64_t kept() const { return master + states; }
  /// True if the compute weights' type differs from the master weights', so that they go through bounce buffers.
  bool bounces() const { return compute != master; }
};
/// Returns the sizes for a store's parameters; gradients are copied to the host unchanged, or rounded to bf16.
Sizes sizes_of(const params::ParamStore& store, const optim::Rule& rule, bool round_gradients);
/// Bytes copied between host and device, by kind of operation.
using Bytes = std::array<int64_t, kOperationKinds>;  // 0 for updates
int64_t bytes_of(OperationKind kind, int64_t elements, const Sizes& sizes);
Bytes bytes_of(const Schedule& schedule, std::span<const Subgroup> subgroups, const Sizes& sizes);

}  // namespace trainer::offload
