#pragma once
// The device on which each part of the optimizer state is updated: a value, made by pure functions.
//
// A subgroup is a range of this rank's part of one group's flat space. Its master weights and moments are in host
// memory. It is updated either there or on the device; in the latter case its state is copied there and back
// (streamed), or stays there (resident). Every place rounds identically (ops/adamw.h), so a plan changes times and
// memory but not results.
#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "params/param_store.h"

namespace trainer::offload {

struct Subgroup {
  int group = 0;
  comm::Chunk part;  // a range of the group's flat space
};
/// Splits this rank's part of each group into nearly equal subgroups of at most `largest` elements that begin on
/// multiples of 64.
std::vector<Subgroup> cut(std::span<const comm::Chunk> held, int64_t largest);
std::vector<Subgroup> cut(std::span<const params::Group> groups, int64_t largest);
/// Returns the number of elements of the largest subgroup.
int64_t largest_of(std::span<const Subgroup> subgroups);

enum class Place : uint8_t { host, streamed, resident };

struct Plan {
  config::Fraction device_share;  // streamed share of the subgroups that are not resident
  int slots = 3;                  // for streamed subgroups: device memory, each holding the state of one subgroup
  int resident = 0;               // resident subgroups, from the first: their gradients come last, weights go first
  bool blocking = false;          // everything waits for its predecessor
};

/// Returns the place of each subgroup. Resident ones come first; of the rest, number x (from 0) is streamed if ⌊(x +
/// 1)·a/b⌋ > ⌊x·a/b⌋. A share of 1/k streams every k-th.
std::vector<Place> places(const Plan& plan, int subgroups);

/// Number of elements of the subgroups in each place.
struct Share {
  int64_t host = 0, streamed = 0, resident = 0;
  int64_t largest_streamed = 0;  // elements of the largest streamed subgroup
  int64_t total() const { return host + streamed + resident; }
};
Share share_of(std::span<const Place> places, std::span<const Subgroup> subgroups);

}  // namespace trainer::offload
