#include "mesh/mesh_shape.h"

#include "base/error.h"

namespace trainer::mesh {

MeshShape::MeshShape(std::vector<MeshAxis> axes, std::vector<std::pair<std::string, AxisSet>> aliases) {
  TRAINER_CHECK(axes.size() <= kMaxAxes, "a mesh of {} axes, but at most {} are supported", axes.size(), kMaxAxes);
  Names names;
  for (MeshAxis& axis : axes) {
    TRAINER_CHECK(axis.size >= 1, "the size of axis {} must be at least 1, not {}", axis.name, axis.size);
    TRAINER_CHECK(names.find(axis.name) == 0, "axis {} is declared twice", axis.name);
    names.axes.push_back(std::move(axis));
  }
  for (auto& [alias, joined] : aliases) {
    TRAINER_CHECK(names.find(alias) == 0, "axis or alias {} is declared twice", alias);
    TRAINER_CHECK(joined >> names.axes.size() == 0, "{} is an alias of axes that are not in the mesh", alias);
    names.aliases.emplace_back(std::move(alias), joined);
  }
  names_ = std::make_shared<const Names>(std::move(names));
}

AxisSet MeshShape::Names::find(std::string_view name) const {
  for (size_t a = 0; a < axes.size(); ++a)
    if (axes[a].name == name) return AxisSet{1} << a;
  for (const auto& [alias, joined] : aliases)
    if (alias == name) return joined;
  return 0;
}

AxisSet MeshShape::set(std::string_view name) const {
  const AxisSet found = names_->find(name);
  TRAINER_CHECK(found != 0, "no axis {} in the mesh of {}", name, name_of(all()));
  return found;
}

std::string MeshShape::name_of(AxisSet set) const {
  if (set == kControlAxes) return "control";
  for (const auto& [alias, joined] : names_->aliases)
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
  std::vector<int> ranks = {rank};
  int stride = world_size();
  for (int a = 0; a < axes(); ++a) {
    stride /= size(a);
    if ((set >> a & 1) == 0) continue;
    const int extent = size(a), own = coordinate(rank, a);
    std::vector<int> more;
    more.reserve(ranks.size() * static_cast<size_t>(extent));
    for (const int other : ranks)
      for (int i = 0; i < extent; ++i) more.push_back(other + (i - own) * stride);
    ranks = std::move(more);
  }
  return ranks;  // row-major over the axes of the set, therefore ascending
}

}  // namespace trainer::mesh
