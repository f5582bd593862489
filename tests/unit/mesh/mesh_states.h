#pragma once
// The layouts of a matrix on small meshes, one character per axis: B(roadcast), P(artial), 0 and 1 for splits.
#include <string>
#include <vector>

#include "mesh/layout.h"

namespace trainer::mesh {

/// Divisible by every product of axis sizes that the tests use.
inline constexpr int64_t kRows = 144, kCols = 144, kElements = kRows * kCols;

inline MeshShape mesh_of(const std::vector<int>& sizes) {
  std::vector<MeshAxis> axes;
  for (const int size : sizes) axes.push_back({format("a{}", axes.size()), size});
  return MeshShape(axes);
}

inline Layout state(const MeshShape& mesh, const std::string& symbols, Shape shape = {kRows, kCols}) {
  Layout layout(mesh, shape);
  for (int a = 0; a < mesh.axes(); ++a) {
    const char symbol = symbols.at(static_cast<size_t>(a));
    layout = layout.with(AxisSet{1} << a, symbol == 'B' ? kReplicate : symbol == 'P' ? kPartial : split(symbol - '0'));
  }
  return layout;
}

/// Returns all 4^axes layouts.
inline std::vector<Layout> all_states(const MeshShape& mesh, Shape shape = {kRows, kCols}) {
  std::vector<std::string> names = {""};
  for (int a = 0; a < mesh.axes(); ++a) {
    std::vector<std::string> longer;
    for (const std::string& name : names)
      for (const char symbol : {'B', 'P', '0', '1'}) longer.push_back(name + symbol);
    names = std::move(longer);
  }
  std::vector<Layout> states;
  for (const std::string& name : names) states.push_back(state(mesh, name, shape));
  return states;
}

}  // namespace trainer::mesh
