#pragma once
// Memory of a run by where it keeps the optimizer's state: a pure function of what its parameters are, so that every
// way can be shown beside the one that was planned. What it says is what ParamStore and Engine take.
#include "config/config.h"
#include "offload/plan.h"

namespace trainer::offload {

/// What decides how much memory a group of parameters takes.
struct Extent {
  int64_t elements = 0;
  comm::Chunk held;  // master weights and moments
};
std::vector<Extent> extents_of(std::span<const params::Group> groups);

struct Footprint {
  int64_t device = 0, host = 0;  // bytes
};
/// Of weights, gradients and the optimizer. `emulated`: rates are given, and not measured.
Footprint footprint(std::span<const Extent> groups, DType compute, const config::Offload& offload, bool emulated);

}  // namespace trainer::offload
