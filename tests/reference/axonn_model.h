#pragma once
// AxoNN's published model of communication (Singh et al. 2023, 2024), beside which the planner's own prediction can be
// put: ring collectives without start-up, nothing overlaps, sum over the layers.
//
// Per block and step, m' = batch · seq / (z · data) tokens, e bytes an element (2; of the data axis 4), r = 2 forward
// passes (recomputation), 2 gathers of a matrix, β of an axis in GiB/s:
//   Y   2 (y−1)/y · m'H/x · e · (7r + 5) / β          X   2 (x−1)/x · m'H/y · e · (2r + 2) / β
//   Z   3 (z−1)/z · 12H²/(xy) · e / β                 D   2 (d−1)/d · 12H²/(xyz) · 4 / β
// The public script puts the factor 4 of the last linear on the forward sum instead of the backward one, so that its
// factors are 16 for Y and 12 for X. Mode `script` repeats that, for comparison only.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace trainer::plan::axonn {

struct Grid {
  int64_t x = 1, y = 1, z = 1, data = 1;
  int64_t ranks() const { return x * y * z * data; }
  bool operator==(const Grid&) const = default;
};
struct Problem {
  int64_t layers = 0, hidden = 0, batch = 0, seq = 2048;
};
/// What one group of `ranks` gets while `inner` such groups run at once within a node, in GiB/s; and what all ranks of
/// a node have to other nodes.
struct Bandwidths {
  int64_t devices_per_node = 1;
  std::map<std::pair<int64_t, int64_t>, double> within;  // (inner, ranks)
  double between = 0;
  /// β of an axis of `ranks` around axes of `inner` ranks together. Between nodes: between / min(devices_per_node,
  /// inner). Throws Code::config when a group within a node was not measured.
  double of(int64_t inner, int64_t ranks) const;
};
enum class Mode { exact, script };

/// Returns the seconds of a step; axes lie on the ranks in the order y, x, z, data, innermost first.
double seconds(const Problem& problem, const Grid& grid, const Bandwidths& bandwidths, Mode mode);

struct Ranked {
  Grid grid;
  double seconds = 0;
};
/// Returns all grids of powers of two with so many ranks, of which at least `floor` share a replica, and z · data
/// divides the batch; fastest first.
std::vector<Ranked> rank_grids(const Problem& problem, int64_t ranks, int64_t floor, const Bandwidths& bandwidths,
                               Mode mode);

inline double Bandwidths::of(int64_t inner, int64_t ranks) const {
  if (inner * ranks > devices_per_node) return between / static_cast<double>(std::min(devices_per_node, inner));
  const auto found = within.find({inner, ranks});
  if (found == within.end())
    throw Error(Code::config, format("no bandwidth of groups of {} ranks, {} at once, within a node of {}", ranks,
                                     inner, devices_per_node));
  return found->second;
}

inline double seconds(const Problem& problem, const Grid& grid, const Bandwidths& bandwidths, Mode mode) {
  constexpr double kElement = 2, kDataElement = 4, kForward = 2, kGathers = 2, kGib = 1 << 30;
  const double of_y = mode == Mode::exact ? 7 * kForward + 5 : 16, of_x = mode == Mode::exact ? 2 * kForward + 2 : 12;
  const auto x = static_cast<double>(grid.x), y = static_cast<double>(grid.y), z = static_cast<double>(grid.z),
             d = static_cast<double>(grid.data), h = static_cast<double>(problem.hidden);
  const double tokens = static_cast<double>(problem.batch * problem.seq) / (z * d), weights = 12 * h * h;
  const auto at = [&](int64_t inner, int64_t ranks, double bytes) {
    return ranks == 1 ? 0 : bytes / kGib / bandwidths.of(inner, ranks);
  };
  const double layer = at(1, grid.y, 2 * (y - 1) / y * tokens * h / x * kElement * of_y) +
                       at(grid.y, grid.x, 2 * (x - 1) / x * tokens * h / y * kElement * of_x) +
                       at(grid.y * grid.x, grid.z, (kGathers + 1) * (z - 1) / z * weights / (x * y) * kElement) +
                       at(grid.y * grid.x * grid.z, grid.data, 2 * (d - 1) / d * weights / (x * y * z) * kDataElement);
  return static_cast<double>(problem.layers) * layer;
}

inline std::vector<Ranked> rank_grids(const Problem& problem, int64_t ranks, int64_t floor,
                                      const Bandwidths& bandwidths, Mode mode) {
  std::vector<Ranked> all;
  for (int64_t x = 1; x <= ranks; x *= 2)
    for (int64_t y = 1; x * y <= ranks; y *= 2)
      for (int64_t z = 1; x * y * z <= ranks; z *= 2) {
        const Grid grid{x, y, z, ranks / (x * y * z)};
        if (grid.ranks() != ranks || x * y * z < floor || problem.batch % (z * grid.data) != 0) continue;
        all.push_back({grid, seconds(problem, grid, bandwidths, mode)});
      }
  std::ranges::stable_sort(all, {}, &Ranked::seconds);
  return all;
}

}  // namespace trainer::plan::axonn
