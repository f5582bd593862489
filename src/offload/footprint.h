#pragma once
// Memory of a run for each placement of the optimizer state: a pure function of its parameters, so that every placement
// can be shown next to the planned one. It equals what ParamStore and Engine allocate.
#include "config/config.h"
#include "offload/plan.h"

namespace trainer::offload {

/// The facts that determine the memory of a group of parameters.
struct Extent {
  int64_t elements = 0;
  comm::Chunk held;  // master weights and moments
};
std::vector<Extent> extents_of(std::span<const params::Group> groups);

struct Footprint {
  int64_t device = 0, host = 0;  // bytes
};
/// Returns the memory of weights, gradients and the optimizer. `emulated`: rates are given, not measured.
Footprint footprint(std::span<const Extent> groups, DType compute, const config::Offload& offload, bool emulated);

}  // namespace trainer::offload
