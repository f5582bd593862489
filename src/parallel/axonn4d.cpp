#include "parallel/axonn4d.h"

#include <algorithm>

#include "parallel/grid_linear.h"

namespace trainer::parallel {

mesh::MeshShape Axonn4D::mesh_shape(int world, const config::Parallel& parallel, int64_t kv_heads) {
  const auto extent = [&](size_t i) { return static_cast<int>(parallel.grid.at(i)); };
  const int replica = extent(0) * extent(1) * extent(2), kv = static_cast<int>(kv_heads);
  TRAINER_CHECK(world % replica == 0, "{} ranks, {} of a replica", world, replica);
  TRAINER_CHECK(parallel.order.size() == 4 && parallel.order.back() == 'd', "order \"{}\"", parallel.order);
  const bool shared = kv > 0 && extent(0) > kv;
  TRAINER_CHECK(!shared || extent(0) % kv == 0, "{} key/value heads for x = {} ranks", kv, extent(0));
  std::vector<mesh::MeshAxis> axes = {{"data", world / replica}};
  for (size_t i = 3; i-- > 0;) {
    const char name = parallel.order[i];
    if (name == 'x' && shared) {
      axes.push_back({"kv", kv});
      axes.push_back({"rep", extent(0) / kv});
    } else {
      axes.push_back({std::string(1, name), extent(static_cast<size_t>(name - 'x'))});
    }
  }
  if (!shared) return mesh::MeshShape(axes);
  return mesh::MeshShape(axes, {{"x", {"kv", "rep"}}});
}

Axonn4D::Axonn4D(mesh::Mesh& mesh, ParamStore& store, const config::Config& config)
    : Strategy(store, Ranks(mesh, config.debug.overlap && config.parallel.overlap_all_reduce)),
      x_(mesh.shape().set("x")),
      y_(mesh.shape().set("y")),
      z_(mesh.shape().set("z")),
      cache_layers_(config.parallel.cache_layers) {}

std::unique_ptr<Linear> Axonn4D::linear(int layer, int group, const LinearSpec& spec) {
  const bool out = reads_residual(spec.site);
  const Spread stream{.rows = z_, .cols = y_}, inside{.rows = z_, .cols = x_};
  return std::make_unique<GridLinear>(
      ranks_, store_, group, spec,
      GridLinear::Place{.grid = {.rows = z_, .cols = out ? x_ : y_, .contraction = out ? y_ : x_, .flat = z_},
                        .from = out ? stream : inside,
                        .to = out ? inside : stream,
                        .keep = layer < cache_layers_});
}

}  // namespace trainer::parallel
