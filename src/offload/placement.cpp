#include "offload/placement.h"

#include <algorithm>

namespace trainer::offload {

std::vector<Subgroup> cut(std::span<const params::Group> groups, int64_t largest) {
  std::vector<comm::Chunk> held;
  for (const params::Group& group : groups) held.push_back(group.held);
  return cut(held, largest);
}

std::vector<Subgroup> cut(std::span<const comm::Chunk> groups, int64_t largest) {
  constexpr int64_t kAlign = 64;
  TRAINER_CHECK(largest >= kAlign, "subgroups must have at least 64 elements, not {}", largest);
  std::vector<Subgroup> all;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto [begin, count] = groups[g];
    if (count == 0) continue;
    const int64_t pieces = divide_up(count, largest / kAlign * kAlign);
    const int64_t length = round_up(divide_up(count, pieces), kAlign);
    for (int64_t at = 0; at < count; at += length)
      all.push_back({static_cast<int>(g), {begin + at, std::min(length, count - at)}});
  }
  return all;
}

int64_t largest_of(std::span<const Subgroup> subgroups) {
  int64_t largest = 0;
  for (const Subgroup& subgroup : subgroups) largest = std::max(largest, subgroup.part.count);
  return largest;
}

std::vector<Residency> residencies(const Placement& placement, int subgroups) {
  std::vector<Residency> all(static_cast<size_t>(subgroups), Residency::host);
  const int resident = std::min(placement.resident, subgroups);
  std::fill_n(all.begin(), resident, Residency::resident);
  const auto [a, b] = placement.device_share;
  for (int64_t x = 0; x + resident < subgroups; ++x)
    if ((x + 1) * a / b > x * a / b) all[static_cast<size_t>(x + resident)] = Residency::streamed;
  return all;
}

Share share_of(std::span<const Residency> residencies, std::span<const Subgroup> subgroups) {
  Share share;
  for (size_t i = 0; i < residencies.size(); ++i) {
    const int64_t count = subgroups[i].part.count;
    if (residencies[i] == Residency::host) share.host += count;
    if (residencies[i] == Residency::resident) share.resident += count;
    if (residencies[i] != Residency::streamed) continue;
    share.streamed += count;
    share.largest_streamed = std::max(share.largest_streamed, count);
  }
  return share;
}

}  // namespace trainer::offload
