#pragma once
// Communication of redistributions, independent of the sizes of tensors.
#include <unordered_map>
#include <vector>

#include "mesh/route.h"
#include "sharding/sharding.h"

namespace trainer::plan {

/// The placement of a matrix: the axes that split its rows, those that split its columns, and those along which ranks
/// hold partial sums.
struct MatrixPlacement {
  sharding::AxisSet rows = 0, cols = 0, partial = 0;
  bool operator==(const MatrixPlacement&) const = default;
};

/// Returns both placements packed into one number, which is possible since a mesh has at most eight axes.
constexpr uint64_t pair_key(const MatrixPlacement& a, const MatrixPlacement& b) {
  uint64_t key = 0;
  for (const sharding::AxisSet set : {a.rows, a.cols, a.partial, b.rows, b.cols, b.partial}) key = key << 8 | set;
  return key;
}

/// RouteShares: the share of a tensor's elements that each collective of a redistribution sends. The steps are those
/// of the shortest route on a mesh whose axes have two ranks each. They depend on the placements only, so all layouts
/// of a plan share one cache.
class RouteShares {
 public:
  struct Leg {
    mesh::AxisSet axes;
    CommOp op;
    double payload;  // share of the elements
  };
  /// Only the axes of `mesh` are read. The one that counts replicas takes no part.
  std::vector<Leg> of(const sharding::ModelSharding& mesh, const MatrixPlacement& from, const MatrixPlacement& to);

 private:
  const std::vector<mesh::Step>& steps_of(const sharding::ModelSharding& mesh, const MatrixPlacement& from,
                                          const MatrixPlacement& to);
  std::unordered_map<uint64_t, std::vector<mesh::Step>> steps_;
};

}  // namespace trainer::plan
