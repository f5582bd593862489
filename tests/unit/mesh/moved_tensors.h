#pragma once
// Tensors with known elements: fills in the part that a rank holds in a layout, and checks it after a redistribution.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "mesh/redistribute.h"

namespace trainer::mesh {

using Stretch = mesh::Run;

/// One rank of a mesh, with memory from the heap.
struct Rank {
  explicit Rank(comm::World& world, const MeshShape& shape) : mesh(world, device, shape) {}
  device::CpuDevice device{1};
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
  Mesh mesh;
};

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
/// Returns −8…7, so that every partial sum is exact in every dtype.
inline int value_of(uint64_t seed, int64_t index) {
  return static_cast<int>(mix(seed * 1000003 + static_cast<uint64_t>(index)) % 16) - 8;
}

/// Fills in rank `rank`'s part of the tensor whose element i is value_of(seed, i), with random partial sums along
/// partial axes.
template <typename T>
void fill(const Layout& layout, int rank, uint64_t seed, const Tensor& local) {
  const AxisSet partial = layout.axes(kPartial);
  const int parts = layout.mesh().group_size(partial), part = layout.mesh().index(rank, partial);
  std::fill_n(local.as<T>(), local.count(), T{});
  for (const Stretch& run : layout.runs(rank))
    for (int64_t i = 0; i < run.length; ++i) {
      const int64_t global = run.global + i;
      int value = 0;
      if (part > 0) {
        value = value_of(seed + 77 * static_cast<uint64_t>(part), global);
      } else {
        value = value_of(seed, global);
        for (int other = 1; other < parts; ++other) value -= value_of(seed + 77 * static_cast<uint64_t>(other), global);
      }
      local.as<T>()[run.local + i * run.stride] = static_cast<T>(static_cast<float>(value));
    }
}

/// Checks the part that `rank` holds, after an all-reduce along partial axes, which is not counted in the rank's meter.
template <typename T>
void check(Rank& rank, const Layout& layout, uint64_t seed, const Tensor& local, const std::string& what) {
  TRAINER_CHECK(local.shape == layout.local(rank.mesh.rank()), "{}: holds {}", what, to_string(local));
  if (layout.axes(kPartial) != 0) {
    Meter unused;
    Exec ex{rank.device, rank.arena, unused};
    rank.mesh.along(layout.axes(kPartial), comm::Purpose::grads).all_reduce(ex, local).join(ex);
  }
  for (const Stretch& run : layout.runs(rank.mesh.rank()))
    for (int64_t i = 0; i < run.length; ++i) {
      const float found = static_cast<float>(local.as<T>()[run.local + i * run.stride]);
      TRAINER_CHECK(found == static_cast<float>(value_of(seed, run.global + i)),
                    "{}: rank {}, element {} is {}, not {}", what, rank.mesh.rank(), run.global + i, found,
                    value_of(seed, run.global + i));
    }
}

}  // namespace trainer::mesh
