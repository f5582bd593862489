#pragma once
// The memory of a run for any placement of the optimizer state, as a pure function, so that every placement can be
// shown next to the planned one. It equals what ParamStore and Engine allocate.
#include "config/config.h"
#include "offload/plan.h"

namespace trainer::offload {

/// The sizes that determine the memory of a group of parameters.
struct Extent {
  int64_t elements = 0;
  comm::Chunk held;    // elements whose master weights and states this rank stores
  int64_t states = 0;  // bytes of their states
};
std::vector<Extent> extents_of(std::span<const params::Group> groups);

struct Footprint {
  int64_t device = 0, host = 0;  // bytes
};
/// Returns the memory of weights, gradients and optimizer state. `emulated`: rates are given, so measuring them takes
/// no memory.
Footprint footprint(std::span<const Extent> groups, DType compute, const config::Offload& offload, bool emulated);

}  // namespace trainer::offload
