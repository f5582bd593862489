#include "config/layout_rules.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "config/tags.h"
#include "config/text.h"

namespace trainer::config {
namespace {

int64_t kv_heads_of(const Model& model) { return model.n_kv_head > 0 ? model.n_kv_head : model.n_head; }

/// The rules of Megatron-1D (parallel/megatron1d.h), except those of token rows.
bool tensor_fits(const Model& m, int64_t tensor) {
  const int64_t kv = kv_heads_of(m);
  return m.n_head % tensor == 0 && m.d_ff % tensor == 0 && m.vocab_multiple % tensor == 0 &&
         (kv % tensor == 0 || tensor % kv == 0);
}

/// "; tensor = 4 or 6 fits": the nearest on both sides.
std::string nearest_tensor(const Model& m, int64_t tensor) {
  int64_t below = std::min(tensor, m.n_head), above = tensor + 1;
  while (below > 1 && !tensor_fits(m, below)) --below;
  while (above <= m.n_head && !tensor_fits(m, above)) ++above;
  return above <= m.n_head ? format("; tensor = {} or {} fits", below, above) : format("; tensor = {} fits", below);
}

std::vector<LayoutRule> megatron_rules(const Config& config) {
  const Model& m = config.model;
  const int64_t tensor = config.parallel.tensor, kv = kv_heads_of(m), rows = config.train.micro_batch * m.seq_len;
  const std::string nearest = nearest_tensor(m, tensor);
  return {
      {m.n_head % tensor == 0,
       {"parallel.tensor", "model.n_head"},
       format("n_head = {} heads do not divide over tensor = {} ranks{}", m.n_head, tensor, nearest)},
      {m.d_ff % tensor == 0,
       {"parallel.tensor", "model.d_ff"},
       format("d_ff = {} does not divide over tensor = {} ranks{}", m.d_ff, tensor, nearest)},
      {kv % tensor == 0 || tensor % kv == 0,
       {"parallel.tensor", "model.n_kv_head"},
       format("n_kv_head = {} heads neither divide over tensor = {} ranks nor can as many ranks share each of them{}",
              kv, tensor, nearest)},
      {m.vocab_multiple % tensor == 0,
       {"parallel.tensor", "model.vocab_multiple"},
       format("vocab_multiple = {} does not divide over tensor = {} ranks{}", m.vocab_multiple, tensor, nearest)},
      {!config.parallel.sequence_parallel || rows % tensor == 0,
       {"parallel.sequence_parallel", "parallel.tensor", "train.micro_batch", "model.seq_len"},
       format("micro_batch x seq_len = {} x {} token rows do not divide over tensor = {} ranks; "
              "sequence_parallel = false keeps them whole",
              config.train.micro_batch, m.seq_len, tensor)},
  };
}

/// |log2(a / b)|
double apart(int64_t a, int64_t b) { return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b))); }

constexpr const char *kOptimus = "optimus-2d", *kAutoddl = "autoddl";

struct Square {
  int64_t rows, cols, depth;
  int64_t ranks() const { return rows * cols * depth; }
};
Square square_of(const Config& config) {
  const std::vector<int64_t>& mesh = config.parallel.mesh;
  return {mesh.at(0), mesh.at(1), mesh.size() > 2 ? mesh[2] : 1};
}
std::string to_string(const Square& s) {
  return s.depth == 1 ? format("[{}, {}]", s.rows, s.cols) : format("[{}, {}, {}]", s.rows, s.cols, s.depth);
}

bool square_fits(const Config& config, const Square& s) {
  const Model& m = config.model;
  const int64_t q = s.cols, kv = kv_heads_of(m);
  return s.rows == q && m.n_head % q == 0 && (kv % q == 0 || q % kv == 0) && m.d_model % q == 0 && m.d_ff % q == 0 &&
         m.vocab_multiple % q == 0 && config.train.micro_batch % (q * s.depth) == 0;
}

/// "; mesh = [2, 2] fits": keeps the number of ranks, or comes as near to it as possible. Among those, the nearest
/// extents.
std::string nearest_square(const Config& config, const Square& wanted) {
  Square best{1, 1, 1};
  double least = std::numeric_limits<double>::infinity();
  const int64_t most = 2 * wanted.ranks(), batch = config.train.micro_batch;
  for (int64_t q = 1; q * q <= most && q <= std::min(config.model.n_head, batch); ++q)
    for (int64_t depth = 1; q * q * depth <= most && q * depth <= batch; ++depth) {
      const Square s{q, q, depth};
      if (!square_fits(config, s)) continue;
      const double distance = 100 * apart(s.ranks(), wanted.ranks()) + apart(q, wanted.rows) + apart(q, wanted.cols) +
                              apart(depth, wanted.depth);
      if (distance >= least) continue;
      least = distance;
      best = s;
    }
  return format("; mesh = {} fits", to_string(best));
}

/// Says whether the columns of tiles can be cut further, so that equally many ranks share each of `kv` heads.
bool heads_fit_tiles(int64_t kv, int64_t q, int64_t tile_cols) {
  const int64_t tiles = q / tile_cols;
  return kv % q == 0 || tiles % kv == 0 || kv % tiles == 0;
}

/// The rules of Optimus-2D (parallel/optimus2d.h).
std::vector<LayoutRule> optimus_rules(const Config& config) {
  const Model& m = config.model;
  const Square s = square_of(config);
  const int64_t q = s.cols, kv = kv_heads_of(m), batch = config.train.micro_batch, shares = q * s.depth;
  const std::string nearest = square_fits(config, s) ? "" : nearest_square(config, s);
  std::vector<LayoutRule> rules = {
      {s.rows == q, {"parallel.mesh"}, format("mesh = {} is not square{}", to_string(s), nearest)}};
  if (s.rows != q) return rules;
  const int64_t tile_rows = config.parallel.node_tile.at(0), tile_cols = config.parallel.node_tile.at(1);
  const bool tiles = q % tile_rows == 0 && q % tile_cols == 0;
  const auto divides = [&](const char* name, int64_t extent, const char* what, const char* key) {
    rules.push_back({extent % q == 0,
                     {"parallel.mesh", key},
                     format("{} = {}{} not divide over q = {} columns of ranks{}", name, extent, what, q, nearest)});
  };
  divides("n_head", m.n_head, " heads do", "model.n_head");
  divides("d_model", m.d_model, " does", "model.d_model");
  divides("d_ff", m.d_ff, " does", "model.d_ff");
  rules.push_back({kv % q == 0 || q % kv == 0,
                   {"parallel.mesh", "model.n_kv_head"},
                   format("n_kv_head = {} heads neither divide over q = {} columns of ranks nor can as many of them "
                          "share each{}",
                          kv, q, nearest)});
  divides("vocab_multiple", m.vocab_multiple, " does", "model.vocab_multiple");
  rules.push_back(
      {batch % shares == 0,
       {"parallel.mesh", "train.micro_batch"},
       s.depth == 1 ? format("micro_batch = {} sequences do not divide over q = {} rows of ranks{}", batch, q, nearest)
                    : format("micro_batch = {} sequences do not divide over q x depth = {} x {} rows of "
                             "ranks{}",
                             batch, q, s.depth, nearest)});
  const auto below = [&](int64_t extent) {  // the largest divisor of q up to it
    for (extent = std::min(extent, q); q % extent != 0;) --extent;
    return extent;
  };
  rules.push_back({tiles,
                   {"parallel.node_tile", "parallel.mesh"},
                   format("node_tile = [{}, {}] does not divide {} x {} ranks; node_tile = [{}, {}] fits", tile_rows,
                          tile_cols, q, q, below(tile_rows), below(tile_cols))});
  rules.push_back({!tiles || (kv % q != 0 && q % kv != 0) || heads_fit_tiles(kv, q, tile_cols),
                   {"parallel.node_tile", "model.n_kv_head"},
                   format("node_tile = [{}, {}]: ranks that share one of n_kv_head = {} heads are spread unevenly over "
                          "{} tiles; node_tile = [{}, 1] fits",
                          tile_rows, tile_cols, kv, tiles ? q / tile_cols : 0, tile_rows)});
  return rules;
}

constexpr const char* kAxonn = "axonn-4d";

struct Grid {
  int64_t x, y, z;
  int64_t ranks() const { return x * y * z; }
};
Grid grid_of(const Config& config) {
  const std::vector<int64_t>& grid = config.parallel.grid;
  return {grid.at(0), grid.at(1), grid.at(2)};
}
std::string to_string(const Grid& g) { return format("[{}, {}, {}]", g.x, g.y, g.z); }

bool grid_fits(const Config& config, const Grid& g) {
  const Model& m = config.model;
  const int64_t kv = kv_heads_of(m);
  return m.n_head % g.x == 0 && (kv % g.x == 0 || g.x % kv == 0) && m.d_ff % g.x == 0 && m.vocab_multiple % g.x == 0 &&
         m.d_model % g.y == 0 && config.train.micro_batch % g.z == 0;
}

/// "; grid = [2, 1, 2] fits": keeps the number of ranks, or comes as near to it as possible. Among those, the nearest
/// extents.
std::string nearest_grid(const Config& config, const Grid& wanted) {
  Grid best{1, 1, 1};
  double least = std::numeric_limits<double>::infinity();
  const int64_t most = 2 * wanted.ranks();
  for (int64_t x = 1; x <= std::min(config.model.n_head, most); ++x)
    for (int64_t y = 1; x * y <= most; ++y)
      for (int64_t z = 1; x * y * z <= most && z <= config.train.micro_batch; ++z) {
        const Grid g{x, y, z};
        if (!grid_fits(config, g)) continue;
        const double distance =
            100 * apart(g.ranks(), wanted.ranks()) + apart(x, wanted.x) + apart(y, wanted.y) + apart(z, wanted.z);
        if (distance >= least) continue;
        least = distance;
        best = g;
      }
  return format("; grid = {} fits", to_string(best));
}

/// The rules of AxoNN-4D (parallel/axonn4d.h).
std::vector<LayoutRule> axonn_rules(const Config& config) {
  const Model& m = config.model;
  const Grid g = grid_of(config);
  const int64_t kv = kv_heads_of(m), batch = config.train.micro_batch;
  const std::string nearest = grid_fits(config, g) ? "" : nearest_grid(config, g);
  return {
      {m.n_head % g.x == 0,
       {"parallel.grid", "model.n_head"},
       format("n_head = {} heads do not divide over x = {} ranks{}", m.n_head, g.x, nearest)},
      {m.d_ff % g.x == 0,
       {"parallel.grid", "model.d_ff"},
       format("d_ff = {} does not divide over x = {} ranks{}", m.d_ff, g.x, nearest)},
      {kv % g.x == 0 || g.x % kv == 0,
       {"parallel.grid", "model.n_kv_head"},
       format("n_kv_head = {} heads neither divide over x = {} ranks nor can as many ranks share each of them{}", kv,
              g.x, nearest)},
      {m.vocab_multiple % g.x == 0,
       {"parallel.grid", "model.vocab_multiple"},
       format("vocab_multiple = {} does not divide over x = {} ranks{}", m.vocab_multiple, g.x, nearest)},
      {m.d_model % g.y == 0,
       {"parallel.grid", "model.d_model"},
       format("d_model = {} does not divide over y = {} ranks{}", m.d_model, g.y, nearest)},
      {batch % g.z == 0,
       {"parallel.grid", "train.micro_batch"},
       format("micro_batch = {} sequences do not divide over z = {} ranks{}", batch, g.z, nearest)},
  };
}

}  // namespace

int64_t ranks_of_replica(const Config& config) {
  if (config.parallel.strategy == kAutoddl)
    return std::accumulate(config.parallel.axes.begin(), config.parallel.axes.end(), int64_t{1}, std::multiplies<>());
  if (config.parallel.strategy == kOptimus) return square_of(config).ranks();
  return config.parallel.strategy == kAxonn ? grid_of(config).ranks() : config.parallel.tensor;
}

int64_t depth_of_replica(const Config& config) {
  return config.parallel.strategy == kOptimus ? square_of(config).depth : 1;
}

const char* replica_key(const Config& config) {
  if (config.parallel.strategy == kAutoddl) return "parallel.axes";
  if (config.parallel.strategy == kOptimus) return "parallel.mesh";
  return config.parallel.strategy == kAxonn ? "parallel.grid" : "parallel.tensor";
}

std::string replica_text(const Config& config) {
  if (config.parallel.strategy == kAutoddl) return "axes = " + to_toml(Value(config.parallel.axes));
  if (config.parallel.strategy == kOptimus) return format("mesh = {}", to_string(square_of(config)));
  return config.parallel.strategy == kAxonn ? format("grid = {}", to_string(grid_of(config)))
                                            : format("tensor = {}", config.parallel.tensor);
}

std::vector<LayoutRule> layout_rules(const Config& config) {
  if (config.parallel.strategy == "megatron-1d") return megatron_rules(config);
  if (config.parallel.strategy == kOptimus) return optimus_rules(config);
  if (config.parallel.strategy == kAxonn) return axonn_rules(config);
  if (config.parallel.strategy == kAutoddl) return autoddl_rules(config);
  return {};
}

bool layout_fits(const Config& config) {
  // The rules of these two say what would fit, which takes long where many layouts are tried.
  const bool tiles = config.parallel.node_tile != std::vector<int64_t>{1, 1};
  if (config.parallel.strategy == kOptimus && !tiles) return square_fits(config, square_of(config));
  if (config.parallel.strategy == kAxonn) return grid_fits(config, grid_of(config));
  return std::ranges::all_of(layout_rules(config), [](const LayoutRule& rule) { return rule.holds; });
}

void require_layout(const Config& config) {
  for (const LayoutRule& rule : layout_rules(config))
    if (!rule.holds) throw Error(Code::config, rule.text);
}

}  // namespace trainer::config
