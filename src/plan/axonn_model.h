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
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

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

}  // namespace trainer::plan::axonn
