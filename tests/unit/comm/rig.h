#pragma once
// A rank's devices for tests of communicators, and values whose sums depend on the order of addition.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "comm/world.h"
#include "rigs/messages.h"

namespace trainer::comm {

using tests::error_of;
using tests::expect_error;
using tests::expect_parts;

struct Rig {
  device::CpuDevice device{1};
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
};

/// The group of the first `size` ranks, or of `members`.
inline Group group_of(const World& world, std::vector<int> members, uint32_t axes = 1, std::string name = "data") {
  const auto place = std::find(members.begin(), members.end(), world.rank());
  return {axes, std::move(name), members, static_cast<int>(place - members.begin())};
}
inline Group group_of(const World& world, int size, uint32_t axes = 1, std::string name = "data") {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return group_of(world, std::move(members), axes, std::move(name));
}

/// Element i of rank `rank`: of many magnitudes, so that no two orders of addition agree.
template <typename T>
T value(int rank, int64_t i, uint64_t salt = 0) {
  uint64_t h = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u +
               static_cast<uint64_t>(rank + 1) * 0xc2b2ae3d27d4eb4fu + salt * 0x165667b19e3779f9u;
  h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
  h ^= h >> 32;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(h);
  } else {
    const float mantissa = static_cast<float>(h & 0xffffff) / 0x1000000 - 0.5f;
    return T(mantissa * static_cast<float>(1 << ((h >> 40) % 12)));
  }
}

template <typename T>
std::vector<T> values(int rank, int64_t n, uint64_t salt = 0) {
  std::vector<T> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) all[static_cast<size_t>(i)] = value<T>(rank, i, salt);
  return all;
}

template <typename T>
Tensor tensor_of(std::vector<T>& data) {
  return {reinterpret_cast<std::byte*>(data.data()), {static_cast<int64_t>(data.size())}, DTypeOf<T>::value};
}
template <typename T>
Tensor tensor_of(std::vector<T>& data, Chunk range) {
  return {reinterpret_cast<std::byte*>(data.data() + range.begin), {range.count}, DTypeOf<T>::value};
}

/// Equal bits; NaN equals itself.
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace trainer::comm
