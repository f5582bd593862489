#pragma once
// What the ranks of a mesh hold of a tensor, all in one thread and without communication: a whole tensor is cut into
// shards, and put together again.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/philox.h"
#include "tensor/exec.h"
#include "unit/mesh/mesh_states.h"

namespace trainer::signatures {

using Values = std::vector<double>;

/// A thread that is every rank in turn.
struct OneThread {
  device::CpuDevice device{1};
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
};

/// Integers −2 … 2, or numbers between −1 and 1.
inline Values random_values(const std::string& name, int64_t count, bool integers) {
  Values all;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = philox_at(philox_key(17, name), static_cast<uint64_t>(i));
    all.push_back(integers ? static_cast<double>(bits % 5) - 2 : static_cast<double>(bits) * 0x1p-31 - 1);
  }
  return all;
}

class Sharded {
 public:
  /// Memory alone.
  Sharded(Exec& ex, const mesh::Layout& layout) : layout_(layout) {
    for (int rank = 0; rank < ranks(); ++rank) parts_.push_back(ex.take("shard", layout.local(rank), DType::f64));
  }
  /// Along axes of partial sums, each rank holds a random part of every element.
  Sharded(Exec& ex, const mesh::Layout& layout, const Values& whole) : Sharded(ex, layout) {
    const mesh::AxisSet sums = layout.axes(mesh::kPartial);
    const int parts = layout.mesh().group_size(sums);
    std::vector<Values> others;
    for (int n = 1; n < parts; ++n) others.push_back(random_values(format("part {}", n), layout.shape().count(), true));
    for (int rank = 0; rank < ranks(); ++rank) {
      const int part = layout.mesh().index(rank, sums);
      for_elements(rank, [&](size_t at, double& element) {
        if (part > 0) {
          element = others[static_cast<size_t>(part - 1)][at];
        } else {
          element = whole[at];
          for (const Values& other : others) element -= other[at];
        }
      });
    }
  }

  const mesh::Layout& layout() const { return layout_; }
  int ranks() const { return layout_.mesh().world_size(); }
  const Tensor& operator[](int rank) const { return parts_[static_cast<size_t>(rank)].tensor(); }
  /// The first element of the whole that a rank has.
  int64_t first(int rank) const { return layout_.runs(rank).front().global; }

  /// The whole tensor, with partial sums added. Nothing where copies of it differ in any bit.
  std::optional<Values> whole() const {
    const mesh::AxisSet copies = layout_.axes(mesh::kReplicate), sums = layout_.axes(mesh::kPartial);
    const auto count = static_cast<size_t>(layout_.shape().count());
    std::vector<Values> each(static_cast<size_t>(layout_.mesh().group_size(copies)), Values(count));
    std::vector<int> parts(count);
    for (int rank = 0; rank < ranks(); ++rank) {
      const int copy = layout_.mesh().index(rank, copies);
      for_elements(rank, [&](size_t at, double& element) {
        each[static_cast<size_t>(copy)][at] += element;
        parts[at] += copy == 0 ? 1 : 0;
      });
    }
    for (const int found : parts)
      TRAINER_CHECK(found == layout_.mesh().group_size(sums), "an element of {} is held {} times",
                    mesh::to_string(layout_), found);
    for (const Values& copy : each)
      if (copy != each.front()) return {};
    return each.front();
  }

 private:
  template <typename F>
  void for_elements(int rank, F&& f) const {
    double* const data = (*this)[rank].as<double>();
    for (const mesh::Run& run : layout_.runs(rank))
      for (int64_t i = 0; i < run.length; ++i) f(static_cast<size_t>(run.global + i), data[run.local + i * run.stride]);
  }

  mesh::Layout layout_;
  std::vector<Scratch> parts_;
};

/// Largest difference relative to the largest element; infinite where there is nothing to compare.
inline double difference(const std::optional<Values>& found, const Values& expected) {
  double largest = 0, size = 1e-300;
  if (!found || found->size() != expected.size()) return HUGE_VAL;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double apart = std::abs((*found)[i] - expected[i]);
    if (!(apart <= largest)) largest = apart;
    size = std::max(size, std::abs(expected[i]));
  }
  return largest / size;
}

/// Every word of so many letters.
inline std::vector<std::string> words(const std::string& letters, int length) {
  std::vector<std::string> all = {""};
  for (int n = 0; n < length; ++n) {
    std::vector<std::string> longer;
    for (const std::string& word : all)
      for (const char letter : letters) longer.push_back(word + letter);
    all = std::move(longer);
  }
  return all;
}

}  // namespace trainer::signatures
