#pragma once
// A rank's device for tests of communicators, and values whose sums depend on the order of addition.
#include <gtest/gtest.h>

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

/// Returns the group of the first `size` ranks, or of `members`.
inline Group group_of(const World& world, std::vector<int> members, uint32_t axes = 1, std::string name = "data") {
  const auto place = std::find(members.begin(), members.end(), world.rank());
  return {axes, std::move(name), members, static_cast<int>(place - members.begin())};
}
inline Group group_of(const World& world, int size, uint32_t axes = 1, std::string name = "data") {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return group_of(world, std::move(members), axes, std::move(name));
}

/// Returns element i of rank `rank`. Magnitudes vary, so that sums depend on the order of addition.
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

/// The lengths of the pieces of an uneven all_to_all among g ranks; some pieces are empty.
class UnevenPieces {
 public:
  /// About n elements per piece.
  UnevenPieces(int g, int64_t n) : g_(g), n_(n) {}
  int64_t count(int from, int to) const {
    const int64_t h = (from * 5 + to * 3 + n_) % 7;
    return from == to && from % 2 == 0 ? 0 : h < 2 ? 0 : n_ * h / 4 + to;
  }
  std::vector<int64_t> sent_by(int rank) const {
    return each([&](int other) { return count(rank, other); });
  }
  std::vector<int64_t> received_by(int rank) const {
    return each([&](int other) { return count(other, rank); });
  }
  int64_t wire() const {
    int64_t sum = 0;
    for (int from = 0; from < g_; ++from)
      for (int to = 0; to < g_; ++to) sum += from == to ? 0 : count(from, to);
    return sum;
  }
  int64_t longest() const {
    int64_t most = 0;
    for (int from = 0; from < g_; ++from)
      for (int to = 0; to < g_; ++to) most = std::max(most, count(from, to));
    return most;
  }
  int64_t payload() const { return g_ == 1 ? 0 : divide_up(wire(), int64_t{g_ - 1}); }
  static int64_t sum(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  /// Returns what `rank` receives if every rank sends values<T>().
  template <typename T, typename Value>
  std::vector<T> expected(int rank, const Value& value) const {
    std::vector<T> all;
    for (int from = 0; from < g_; ++from) {
      int64_t begin = 0;
      for (int to = 0; to < rank; ++to) begin += count(from, to);
      for (int64_t i = 0; i < count(from, rank); ++i) all.push_back(value(from, begin + i));
    }
    return all;
  }

 private:
  template <typename F>
  std::vector<int64_t> each(F&& f) const {
    std::vector<int64_t> all;
    for (int other = 0; other < g_; ++other) all.push_back(f(other));
    return all;
  }
  int g_;
  int64_t n_;
};

/// True if all bits are equal; a NaN equals itself.
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace trainer::comm
