#include "plan/route_shares.h"

#include "base/format.h"

namespace trainer::plan {

const std::vector<RouteShares::Leg>& RouteShares::of(const std::vector<config::TagAxis>& axes, const std::string& from,
                                                     const std::string& to) {
  std::string key;
  for (const config::TagAxis& axis : axes) key += format("{},", axis.size);
  key += from + to;
  const auto found = legs_.find(key);
  if (found != legs_.end()) return found->second;
  std::vector<Leg> legs;
  std::string state = from;
  for (const mesh::Step& step : steps_of(from, to)) {
    double group = 1, share = 1;  // ranks that change; what others that cut the tensor leave of it
    for (size_t a = 0; a < axes.size(); ++a) {
      const auto size = static_cast<double>(axes[a].size);
      if ((step.axes >> (a + 1) & 1) != 0) {
        group *= size;
      } else if (state[a] == 'r' || state[a] == 'c') {
        share /= size;
      }
    }
    for (size_t a = 0; a < axes.size(); ++a)
      if ((step.axes >> (a + 1) & 1) != 0)
        state[a] = step.to == mesh::kPartial ? 'p' : step.to == mesh::kReplicate ? '-' : step.to.dim == 0 ? 'r' : 'c';
    if (step.op && group > 1)
      legs.push_back({step.axes, *step.op, *step.op == CommOp::all_to_all ? share / group : share});
  }
  return legs_.emplace(std::move(key), std::move(legs)).first->second;
}

const std::vector<mesh::Step>& RouteShares::steps_of(const std::string& from, const std::string& to) {
  const auto found = steps_.find(from + to);
  if (found != steps_.end()) return found->second;
  std::vector<mesh::MeshAxis> all = {{"data", 1}};
  for (size_t a = 0; a < from.size(); ++a) all.push_back({std::string(1, static_cast<char>('a' + a)), 2});
  const mesh::MeshShape mesh(all);
  const int64_t extent = int64_t{4} * mesh.world_size();
  const auto layout = [&](const std::string& tags) {
    mesh::Layout whole(mesh, {extent, extent});
    for (size_t a = 0; a < tags.size(); ++a) {
      const mesh::AxisSet axis = mesh::AxisSet{2} << a;
      if (tags[a] == 'r') whole = whole.with(axis, mesh::split(0));
      if (tags[a] == 'c') whole = whole.with(axis, mesh::split(1));
      if (tags[a] == 'p') whole = whole.with(axis, mesh::kPartial);
    }
    return whole;
  };
  return steps_.emplace(from + to, mesh::find_route(layout(from), layout(to)).steps).first->second;
}

}  // namespace trainer::plan
