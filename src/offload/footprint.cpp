#include "offload/footprint.h"

#include <algorithm>

#include "offload/calibrate.h"
#include "offload/make.h"
#include "offload/schedule.h"

namespace trainer::offload {

std::vector<Extent> extents_of(std::span<const params::Group> groups) {
  std::vector<Extent> extents;
  for (const params::Group& group : groups) {
    extents.push_back({group.elements, group.held});
    for (const params::State& state : group.states) extents.back().states += state.memory.tensor().bytes();
  }
  return extents;
}

Footprint footprint(std::span<const Extent> groups, DType compute, const config::Offload& offload, bool emulated) {
  const DType state = accumulator_of(compute);
  const int64_t state_bytes = size_of(state), compute_bytes = size_of(compute);
  Footprint bytes;
  int64_t elements = 0, held = 0, states = 0;
  std::vector<comm::Chunk> all_held;
  for (const Extent& group : groups) {
    elements += group.elements;
    held += group.held.count;
    states += group.states;
    all_held.push_back(group.held);
  }
  bytes.device = elements * (compute_bytes + state_bytes);  // compute weights and gradients
  if (offload.optimizer == config::OffloadOptimizer::none) {
    bytes.device +=
        states + (compute == state ? 0 : held * state_bytes);  // the compute weights may be the master weights
    return bytes;
  }
  const int64_t kept = state_bytes + states / std::max<int64_t>(1, held);  // all elements have the same states
  const std::vector<Subgroup> subgroups = cut(all_held, offload.subgroup);
  const int64_t largest = largest_of(subgroups), count = static_cast<int64_t>(subgroups.size());
  const bool narrow = offload.grad_transport == config::GradTransport::bf16;
  const int64_t sent = narrow ? size_of(DType::bf16) : state_bytes;
  bytes.host = held * (kept + sent);
  if (narrow) bytes.device += largest * sent;
  if (compute != state) bytes.host += kBounces * largest * compute_bytes;
  if (offload.optimizer != config::OffloadOptimizer::interleaved) return bytes;
  const auto resident = static_cast<size_t>(std::min(offload.resident, count));
  for (size_t i = 0; i < resident; ++i) bytes.device += subgroups[i].part.count * kept;
  const bool chosen = is_chosen(offload);
  if (chosen && !emulated) {
    const int64_t measured = calibration_bytes(largest, state_bytes, kept);
    bytes.device += kStatesOnDevice * measured;
    bytes.host += kStatesOnHost * measured;
  }
  if (chosen || config::fraction_of(offload.gpu_fraction)->num > 0)
    bytes.device += std::min(offload.slots, count) * largest * kept;
  return bytes;
}

}  // namespace trainer::offload
