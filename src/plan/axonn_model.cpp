#include "plan/axonn_model.h"

#include <algorithm>

#include "base/error.h"

namespace trainer::plan::axonn {

double Bandwidths::of(int64_t inner, int64_t ranks) const {
  if (inner * ranks > devices_per_node) return between / static_cast<double>(std::min(devices_per_node, inner));
  const auto found = within.find({inner, ranks});
  if (found == within.end())
    throw Error(Code::config, format("no bandwidth of groups of {} ranks, {} at once, within a node of {}", ranks,
                                     inner, devices_per_node));
  return found->second;
}

double seconds(const Problem& problem, const Grid& grid, const Bandwidths& bandwidths, Mode mode) {
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

std::vector<Ranked> rank_grids(const Problem& problem, int64_t ranks, int64_t floor, const Bandwidths& bandwidths,
                               Mode mode) {
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
