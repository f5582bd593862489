#include "mesh/mesh_shape.h"

#include "base/error.h"

namespace trainer::mesh {

MeshShape::MeshShape(std::vector<MeshAxis> axes, std::vector<std::pair<std::string, std::vector<std::string>>> aliases)
    : axes_(std::move(axes)) {
  TRAINER_CHECK(axes_.size() < 32, "{} axes, at most 31", axes_.size());
  const auto unused = [&](const std::string& name, size_t before) {
    for (size_t a = 0; a < before; ++a) TRAINER_CHECK(axes_[a].name != name, "axis {} is declared twice", name);
    for (const auto& [alias, set] : aliases_) TRAINER_CHECK(alias != name, "axis {} is declared twice", name);
  };
  for (size_t a = 0; a < axes_.size(); ++a) {
    TRAINER_CHECK(axes_[a].size >= 1, "axis {} of size {}", axes_[a].name, axes_[a].size);
    unused(axes_[a].name, a);
  }
  for (auto& [alias, factors] : aliases) {
    unused(alias, axes_.size());
    AxisSet joined = 0;
    for (const std::string& factor : factors) joined |= set(factor);
    aliases_.emplace_back(std::move(alias), joined);
  }
}

AxisSet MeshShape::set(std::string_view name) const {
  for (size_t a = 0; a < axes_.size(); ++a)
    if (axes_[a].name == name) return AxisSet{1} << a;
  for (const auto& [alias, joined] : aliases_)
    if (alias == name) return joined;
  std::string known;
  for (const MeshAxis& axis : axes_) known += (known.empty() ? "" : ", ") + axis.name;
  TRAINER_CHECK(false, "no axis {} in the mesh of {}", name, known);
  return 0;
}

std::string MeshShape::name_of(AxisSet set) const {
  if (set == kControlAxes) return "control";
  for (const auto& [alias, joined] : aliases_)
    if (joined == set) return alias;
  std::string joined;
  for (int a = 0; a < axes(); ++a)
    if ((set >> a & 1) != 0) joined += (joined.empty() ? "" : "+") + name(a);
  return joined;
}

int MeshShape::group_size(AxisSet set) const {
  int product = 1;
  for (int a = 0; a < axes(); ++a)
    if ((set >> a & 1) != 0) product *= size(a);
  return product;
}

int MeshShape::coordinate(int rank, int axis) const {
  int stride = 1;
  for (int a = axes() - 1; a > axis; --a) stride *= size(a);
  return rank / stride % size(axis);
}

int MeshShape::index(int rank, AxisSet set) const {
  int place = 0;
  for (int a = 0; a < axes(); ++a)
    if ((set >> a & 1) != 0) place = place * size(a) + coordinate(rank, a);
  return place;
}

std::vector<int> MeshShape::members(int rank, AxisSet set) const {
  std::vector<int> ranks;
  for (int other = 0; other < world_size(); ++other)
    if (index(other, all() & ~set) == index(rank, all() & ~set)) ranks.push_back(other);
  return ranks;  // ascending ranks are row-major in every subset of the axes
}

}  // namespace trainer::mesh
