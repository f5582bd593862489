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

/// The extents of the axes of a replica: rows, columns and depth of Optimus-2D; x, y and z of AxoNN-4D.
struct Extents {
  int64_t x, y, z;
  int64_t ranks() const { return x * y * z; }
};
Extents extents_of(const std::vector<int64_t>& key) { return {key.at(0), key.at(1), key.size() > 2 ? key[2] : 1}; }
Extents square_of(const Config& config) { return extents_of(config.parallel.mesh); }
Extents grid_of(const Config& config) { return extents_of(config.parallel.grid); }
std::string grid_text(const Extents& e) { return format("[{}, {}, {}]", e.x, e.y, e.z); }
std::string square_text(const Extents& e) { return e.z == 1 ? format("[{}, {}]", e.x, e.y) : grid_text(e); }

/// Returns fitting extents that keep the number of ranks, or come as near to it as possible. Among those,
/// the nearest extents.
Extents nearest_fitting(const Config& config, const Extents& wanted, bool (*fits)(const Config&, const Extents&)) {
  Extents best{1, 1, 1};
  double least = std::numeric_limits<double>::infinity();
  const int64_t most = 2 * wanted.ranks();
  for (int64_t x = 1; x <= std::min(config.model.n_head, most); ++x)
    for (int64_t y = 1; x * y <= most; ++y)
      for (int64_t z = 1; x * y * z <= most && z <= config.train.micro_batch; ++z) {
        const Extents e{x, y, z};
        if (!fits(config, e)) continue;
        const double distance =
            100 * apart(e.ranks(), wanted.ranks()) + apart(x, wanted.x) + apart(y, wanted.y) + apart(z, wanted.z);
        if (distance >= least) continue;
        least = distance;
        best = e;
      }
  return best;
}

bool square_fits(const Config& config, const Extents& s) {
  const Model& m = config.model;
  const int64_t q = s.y, kv = kv_heads_of(m);
  return s.x == q && m.n_head % q == 0 && (kv % q == 0 || q % kv == 0) && m.d_model % q == 0 && m.d_ff % q == 0 &&
         m.vocab_multiple % q == 0 && config.train.micro_batch % (q * s.z) == 0;
}

/// Says whether the columns of tiles can be cut further, so that equally many ranks share each of `kv` heads.
bool heads_fit_tiles(int64_t kv, int64_t q, int64_t tile_cols) {
  const int64_t tiles = q / tile_cols;
  return kv % q == 0 || tiles % kv == 0 || kv % tiles == 0;
}

/// The rules of Optimus-2D (parallel/optimus2d.h).
std::vector<LayoutRule> optimus_rules(const Config& config) {
  const Model& m = config.model;
  const Extents s = square_of(config);
  const int64_t q = s.y, kv = kv_heads_of(m), batch = config.train.micro_batch, shares = q * s.z;
  const std::string nearest =
      square_fits(config, s) ? "" : format("; mesh = {} fits", square_text(nearest_fitting(config, s, square_fits)));
  std::vector<LayoutRule> rules = {
      {s.x == q, {"parallel.mesh"}, format("mesh = {} is not square{}", square_text(s), nearest)}};
  if (s.x != q) return rules;
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
       s.z == 1 ? format("micro_batch = {} sequences do not divide over q = {} rows of ranks{}", batch, q, nearest)
                : format("micro_batch = {} sequences do not divide over q x depth = {} x {} rows of "
                         "ranks{}",
                         batch, q, s.z, nearest)});
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

bool grid_fits(const Config& config, const Extents& g) {
  const Model& m = config.model;
  const int64_t kv = kv_heads_of(m);
  return m.n_head % g.x == 0 && (kv % g.x == 0 || g.x % kv == 0) && m.d_ff % g.x == 0 && m.vocab_multiple % g.x == 0 &&
         m.d_model % g.y == 0 && config.train.micro_batch % g.z == 0;
}

/// The rules of AxoNN-4D (parallel/axonn4d.h).
std::vector<LayoutRule> axonn_rules(const Config& config) {
  const Model& m = config.model;
  const Extents g = grid_of(config);
  const int64_t kv = kv_heads_of(m), batch = config.train.micro_batch;
  const std::string nearest =
      grid_fits(config, g) ? "" : format("; grid = {} fits", grid_text(nearest_fitting(config, g, grid_fits)));
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
  return config.parallel.strategy == kOptimus ? square_of(config).z : 1;
}

const char* replica_key(const Config& config) {
  if (config.parallel.strategy == kAutoddl) return "parallel.axes";
  if (config.parallel.strategy == kOptimus) return "parallel.mesh";
  return config.parallel.strategy == kAxonn ? "parallel.grid" : "parallel.tensor";
}

std::string replica_text(const Config& config) {
  if (config.parallel.strategy == kAutoddl) return "axes = " + to_toml(Value(config.parallel.axes));
  if (config.parallel.strategy == kOptimus) return format("mesh = {}", square_text(square_of(config)));
  return config.parallel.strategy == kAxonn ? format("grid = {}", grid_text(grid_of(config)))
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
