#pragma once
// The placement: where each part of the optimizer state is updated. A value, computed by pure functions.
//
// A subgroup is a range of this rank's part of one group's flat buffer. Its master weights and states are in host
// memory. It is updated on the host or on the device; in the latter case its state is copied to the device and back
// (streamed), or stays on the device (resident). Host and device round identically (ops/update.h), so a placement
// changes times and memory but not results.
#include <cstdint>
#include <span>
#include <vector>

#include "config/offload.h"
#include "params/param_store.h"

namespace trainer::offload {

struct Subgroup {
  int group = 0;
  comm::Chunk part;  // a range of the group's flat buffer
};
/// Splits this rank's part of each group into nearly equal subgroups of at most `largest` elements that begin on
/// multiples of 64.
std::vector<Subgroup> cut(std::span<const comm::Chunk> held, int64_t largest);
std::vector<Subgroup> cut(std::span<const params::Group> groups, int64_t largest);
/// Returns the number of elements of the largest subgroup.
int64_t largest_of(std::span<const Subgroup> subgroups);

enum class Residency : uint8_t { host, streamed, resident };

struct Placement {
  config::Fraction device_share;  // the streamed share of the subgroups that are not resident
  int slots = 3;                  // device memory for streamed subgroups: each slot has the state of one subgroup
  int resident = 0;               // number of resident subgroups, from the first: last gradients, first weights
  bool blocking = false;          // every operation waits for its predecessor
};

/// Returns the residency of each subgroup. Residents come first; of the remaining subgroups, number x (from 0) is
/// streamed if ⌊(x + 1)·a/b⌋ > ⌊x·a/b⌋ with the share a/b. A share of 1/k streams every k-th subgroup.
std::vector<Residency> residencies(const Placement& placement, int subgroups);

/// The number of elements by residency.
struct Share {
  int64_t host = 0, streamed = 0, resident = 0;
  int64_t largest_streamed = 0;  // elements of the largest streamed subgroup
  int64_t total() const { return host + streamed + resident; }
};
Share share_of(std::span<const Residency> residencies, std::span<const Subgroup> subgroups);

}  // namespace trainer::offload
