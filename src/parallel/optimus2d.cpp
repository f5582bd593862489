#include "parallel/optimus2d.h"

#include "parallel/grid_linear.h"
#include "parallel/summa.h"

namespace trainer::parallel {
namespace {

using Extents = std::vector<int>;

/// Cuts an axis in factors: those of its tiles, and those of the ranks of a tile. Factors of one rank are skipped.
struct RankAxis {
  RankAxis(const std::string& name, Extents tile_factors, Extents rank_factors) {
    std::erase(tile_factors, 1);
    std::erase(rank_factors, 1);
    if (tile_factors.empty() && rank_factors.empty()) rank_factors = {1};
    const bool one = tile_factors.size() + rank_factors.size() == 1;
    for (const auto& [extents, axes] : {std::pair{&tile_factors, &tiles}, {&rank_factors, &ranks}})
      for (const int extent : *extents) {
        names.push_back(one ? name : format("{}{}", name, names.size()));
        axes->push_back({names.back(), extent});
      }
  }
  std::vector<mesh::MeshAxis> tiles, ranks;
  std::vector<std::string> names;  // of all factors, outermost first
};

}  // namespace

mesh::MeshShape Optimus2D::mesh_shape(int world, const config::Parallel& parallel, int64_t kv_heads) {
  const auto extent = [](const std::vector<int64_t>& list, size_t i) { return static_cast<int>(list.at(i)); };
  const int q = extent(parallel.mesh, 0), depth = parallel.mesh.size() > 2 ? extent(parallel.mesh, 2) : 1;
  const int tile_rows = extent(parallel.node_tile, 0), tile_cols = extent(parallel.node_tile, 1);
  const int replica = q * q * depth;
  TRAINER_CHECK(extent(parallel.mesh, 1) == q && world % replica == 0 && q % tile_rows == 0 && q % tile_cols == 0,
                "{} ranks for a mesh of {} x {} x {}, tiles of {} x {}", world, q, extent(parallel.mesh, 1), depth,
                tile_rows, tile_cols);

  // Where ranks share heads, the outer factors of "col" make as many groups as there are heads.
  const int tiles = q / tile_cols, kv = static_cast<int>(kv_heads);
  const bool shared = kv > 0 && q > kv, within_tiles = shared && kv > tiles;
  TRAINER_CHECK(!shared || (q % kv == 0 && (tiles % kv == 0 || kv % tiles == 0)),
                "{} key/value heads for {} tiles of {} columns", kv, tiles, tile_cols);
  const RankAxis rows("row", {q / tile_rows}, {tile_rows});
  const RankAxis cols("col", shared && !within_tiles ? Extents{kv, tiles / kv} : Extents{tiles},
                      within_tiles ? Extents{kv / tiles, q / kv} : Extents{tile_cols});

  std::vector<mesh::MeshAxis> axes = {{depth == 1 ? "data" : "replica", world / replica}};
  std::vector<std::pair<std::string, std::vector<std::string>>> aliases;
  if (depth > 1) {
    axes.push_back({"depth", depth});
    aliases.push_back({"data", {"replica", "depth"}});
  }
  for (const auto* factors : {&rows.tiles, &cols.tiles, &rows.ranks, &cols.ranks})
    axes.insert(axes.end(), factors->begin(), factors->end());
  if (rows.names.size() > 1) aliases.push_back({"row", rows.names});
  if (cols.names.size() > 1) aliases.push_back({"col", cols.names});
  if (shared && kv > 1) {
    std::vector<std::string> outer, inner;
    int groups = 1;
    for (const auto* factors : {&cols.tiles, &cols.ranks})
      for (const mesh::MeshAxis& factor : *factors) {
        (groups < kv ? outer : inner).push_back(factor.name);
        groups *= factor.size;
      }
    aliases.push_back({"kv", outer});
    aliases.push_back({"rep", inner});
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
  // The same product with whole lines of blocks: two of X, W and Y are gathered or summed at once.
  const Grid grid{.rows = row_,
                  .cols = input_stays ? AxisSet{0} : col_,
                  .contraction = input_stays ? col_ : AxisSet{0},
                  .flat = row_};
  return std::make_unique<GridLinear>(ranks_, store_, group, spec,
                                      GridLinear::Place{.grid = grid, .from = stream(layer), .to = stream(layer)});
}

}  // namespace trainer::parallel
