#include "parallel/optimus2d.h"

#include <algorithm>

#include "parallel/grid_linear.h"
#include "parallel/summa.h"

namespace trainer::parallel {
namespace {

using Extents = std::vector<int>;
using Names = std::vector<std::string>;

/// Names of the factors that an axis is cut in.
Names names_of(const std::string& axis, const Extents& extents) {
  if (extents.size() == 1) return {axis};
  Names names;
  for (size_t i = 0; i < extents.size(); ++i) names.push_back(format("{}{}", axis, i));
  return names;
}

}  // namespace

mesh::MeshShape Optimus2D::mesh_shape(int world, const config::Parallel& parallel, int64_t kv_heads) {
  const auto extent = [](const std::vector<int64_t>& list, size_t i) { return static_cast<int>(list.at(i)); };
  const int q = extent(parallel.mesh, 0), depth = parallel.mesh.size() > 2 ? extent(parallel.mesh, 2) : 1;
  const int tile_rows = extent(parallel.node_tile, 0), tile_cols = extent(parallel.node_tile, 1);
  const int replica = q * q * depth, kv = static_cast<int>(kv_heads);
  TRAINER_CHECK(extent(parallel.mesh, 1) == q && world % replica == 0 && q % tile_rows == 0 && q % tile_cols == 0,
                "{} ranks for a mesh of {} x {} x {}, tiles of {} x {}", world, q, extent(parallel.mesh, 1), depth,
                tile_rows, tile_cols);
  const int row_tiles = q / tile_rows, col_tiles = q / tile_cols;

  // Each axis: tiles, then ranks of a tile. Where ranks share heads, one of the two is cut again.
  Extents outer = {col_tiles}, inner = {tile_cols};
  const bool shared = kv > 0 && q > kv;
  if (shared && kv <= col_tiles) {
    outer = {kv, col_tiles / kv};
  } else if (shared) {
    inner = {kv / col_tiles, q / kv};
  }
  TRAINER_CHECK(!shared || (q % kv == 0 && (col_tiles % kv == 0 || kv % col_tiles == 0)),
                "{} key/value heads for {} tiles of {} columns", kv, col_tiles, tile_cols);
  const auto drop_ones = [](Extents& extents) { std::erase(extents, 1); };
  drop_ones(outer);
  drop_ones(inner);
  Extents rows = {row_tiles, tile_rows}, cols = outer;
  drop_ones(rows);
  if (rows.empty()) rows = {1};
  cols.insert(cols.end(), inner.begin(), inner.end());
  if (cols.empty()) cols = {1};
  const Names row_names = names_of("row", rows), col_names = names_of("col", cols);

  std::vector<mesh::MeshAxis> axes = {{depth == 1 ? "data" : "replica", world / replica}};
  std::vector<std::pair<std::string, Names>> aliases;
  if (depth > 1) {
    axes.push_back({"depth", depth});
    aliases.push_back({"data", {"replica", "depth"}});
  }
  const auto add = [&](const Extents& extents, const Names& names, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) axes.push_back({names[i], extents[i]});
  };
  const size_t rows_outside = row_tiles > 1 ? 1 : 0, cols_outside = outer.size();
  add(rows, row_names, 0, rows_outside);
  add(cols, col_names, 0, cols_outside);
  add(rows, row_names, rows_outside, rows.size());
  add(cols, col_names, cols_outside, cols.size());

  if (row_names.size() > 1) aliases.push_back({"row", row_names});
  if (col_names.size() > 1) aliases.push_back({"col", col_names});
  if (shared) {  // the first factors make as many groups as there are heads
    size_t groups = 0;
    for (int product = 1; product < kv; ++groups) product *= cols[groups];
    const auto end = col_names.begin() + static_cast<std::ptrdiff_t>(groups);
    if (groups > 0) aliases.push_back({"kv", Names(col_names.begin(), end)});
    if (groups > 0) aliases.push_back({"rep", Names(end, col_names.end())});
  }
  return mesh::MeshShape(axes, aliases);
}

Optimus2D::Optimus2D(mesh::Mesh& mesh, ParamStore& store, const config::Config& config)
    : Strategy(store, Ranks(mesh, config.debug.overlap)),
      row_(mesh.shape().set("row")),
      col_(mesh.shape().set("col")),
      ring_(config.parallel.panels == "ring"),
      input_stays_(config.parallel.stationary == "auto") {}

std::unique_ptr<Linear> Optimus2D::linear(int layer, int group, const LinearSpec& spec) {
  const bool input_stays = input_stays_ && spec.site == Site::down;
  if (ring_)
    return std::make_unique<SummaLinear>(ranks_, store_, group, spec,
                                         SummaLinear::Place{.row = row_, .col = col_, .input_stays = input_stays});
  // The same, with whole lines of blocks: two of X, W and Y are gathered, or summed, for one product.
  const Grid grid{.rows = row_,
                  .cols = input_stays ? AxisSet{0} : col_,
                  .contraction = input_stays ? col_ : AxisSet{0},
                  .flat = row_};
  return std::make_unique<GridLinear>(ranks_, store_, group, spec,
                                      GridLinear::Place{.grid = grid, .from = stream(layer), .to = stream(layer)});
}

}  // namespace trainer::parallel
