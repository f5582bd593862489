#pragma once
// What moves between placements communicate, whatever the sizes of tensors are.
#include <string>
#include <unordered_map>
#include <vector>

#include "config/tags.h"
#include "mesh/route.h"

namespace trainer::plan {

/// RouteShares says what share of a tensor's elements each collective of a move sends, by extents of the axes and the
/// two placements. It depends on nothing else, so all layouts of a plan use one cache. The steps are those of the
/// shortest route over axes of two ranks.
class RouteShares {
 public:
  struct Leg {
    mesh::AxisSet axes;  // of a mesh of "data" and the axes
    CommOp op;
    double payload;  // share of the elements
  };
  /// `from`, `to`: by axis r rows, c columns, p partial sums, - copies.
  const std::vector<Leg>& of(const std::vector<config::TagAxis>& axes, const std::string& from, const std::string& to);

 private:
  const std::vector<mesh::Step>& steps_of(const std::string& from, const std::string& to);
  std::unordered_map<std::string, std::vector<Leg>> legs_;
  std::unordered_map<std::string, std::vector<mesh::Step>> steps_;
};

}  // namespace trainer::plan
