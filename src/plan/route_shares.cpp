#include "plan/route_shares.h"

namespace trainer::plan {

std::vector<RouteShares::Leg> RouteShares::of(const sharding::ModelSharding& mesh, const MatrixPlacement& from,
                                              const MatrixPlacement& to) {
  std::vector<Leg> legs;
  MatrixPlacement state = from;
  for (const mesh::Step& step : steps_of(mesh, from, to)) {
    double group = 1, share = 1;  // ranks along the changing axes; the share of elements that is left after the splits
                                  // along other axes
    for (size_t a = 0; a < mesh.axes.size(); ++a) {
      const auto size = static_cast<double>(mesh.axes[a].size);
      if ((step.axes >> a & 1) != 0) {
        group *= size;
      } else if (((state.rows | state.cols) >> a & 1) != 0) {
        share /= size;
      }
    }
    for (mesh::AxisSet* set : {&state.rows, &state.cols, &state.partial}) *set &= ~step.axes;
    if (step.to != mesh::kReplicate)
      (step.to == mesh::kPartial ? state.partial : step.to.dim == 0 ? state.rows : state.cols) |= step.axes;
    if (step.op && group > 1)
      legs.push_back({step.axes, *step.op, *step.op == CommOp::all_to_all ? share / group : share});
  }
  return legs;
}

const std::vector<mesh::Step>& RouteShares::steps_of(const sharding::ModelSharding& axes, const MatrixPlacement& from,
                                                     const MatrixPlacement& to) {
  const uint64_t key = pair_key(from, to) << 16 | uint64_t{axes.replicas()} << 8 | axes.axes.size();
  const auto found = steps_.find(key);
  if (found != steps_.end()) return found->second;
  std::vector<mesh::MeshAxis> all;
  for (size_t a = 0; a < axes.axes.size(); ++a)
    all.push_back({std::string(1, static_cast<char>('a' + a)), a == axes.replica_axis() ? 1 : 2});
  const mesh::MeshShape mesh(all);
  const int64_t extent = int64_t{4} * mesh.world_size();
  const auto layout = [&](const MatrixPlacement& at) {
    return mesh::Layout(mesh, {extent, extent})
        .with(at.rows, mesh::split(0))
        .with(at.cols, mesh::split(1))
        .with(at.partial, mesh::kPartial);
  };
  return steps_.emplace(key, mesh::find_route(layout(from), layout(to)).steps).first->second;
}

}  // namespace trainer::plan
