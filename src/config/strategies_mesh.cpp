// Strategies on a mesh of ranks: Optimus-2D and AxoNN-4D.
#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "config/strategy_rows.h"

namespace trainer::config {
namespace {

using sharding::AxisSet;
using sharding::LinearSharding;
using sharding::ModelSharding;
using sharding::Site;
using sharding::Transfer;

// Optimus-2D: tensor parallelism on a mesh of q × q ranks (Xu et al. 2021). Both activations and weights are split by
// rows and by columns, so only vectors are replicated. The 2.5-dimensional form (Wang et al. 2021) has `depth` meshes
// with the same weights, each of which computes its own sequences.
//
//   N rows of a mesh, hidden H, heads A, feed-forward F, vocabulary V      on rank (row, col) of its mesh
//   residual stream, norms                rows over row, columns over col  [N/q, H/q]
//   q, k, v and attention                 rows over row, heads over col    [N/q, 3H/q]
//   feed-forward                          rows over row, columns over col  [N/q, F/q]
//   W of qkv, out, up [in, out]           both over the mesh               [in/q, out/q]
//   W of down [F, H]                      "auto": [F/q over col, H/q over row];  "paper": as the others
//   biases, norms, positions              columns over col, copies over row
//   table of embedding and head           [V/q over col], 1/q of it over row
//
// A linear communicates two of its three matrices; the third is stationary. With "paper" the stationary matrix is
// always the output. With "auto" it is the largest, which for down is the input. For a linear X [N, K] · W [K, N'] a
// rank takes part in messages of NK/q + KN'/q elements, or, if the input is stationary, of KN'/q + NN'/q elements. The
// backward pass takes twice that, minus NN'/q if both GEMMs use the same dY. Panels "gather" communicate whole rows or
// columns of blocks, "ring" block by block (parallel/summa.h), which takes less memory.
//
// Axis "row" connects the ranks of one column of the mesh, axis "col" those of one row. Ranks are numbered (replica,
// depth, row, col), innermost last, or in tiles of neighbours (parallel.node_tile). The group "data" combines the axes
// replica and depth: gradients are reduced over it, and ZeRO-1 shards the optimizer state over it.
//
// With parallel.context = q, the ranks of axis "row" share all sequences: each has some rows of every one.
//
// Results equal those of one rank. The original code differs in three points: it divides each gradient by the tokens of
// one row of ranks, it uses one dropout mask on all ranks, and it clips by the norm of one column's vectors.
ModelSharding optimus(const Config& config) {
  const Parallel& p = config.parallel;
  const int64_t depth = p.mesh.size() > 2 ? p.mesh[2] : 1;
  ModelSharding s = over(config, {});
  if (depth > 1) {
    s.axes = {{"replica", s.axes[0].size}, {"depth", depth}};
    s.groups = {{"data", 3}};
  }
  // Tiles of neighbours are outer factors of the two axes; the ranks within a tile are the inner factors.
  AxisSet lines[2] = {0, 0};
  const char* const names[] = {"row", "col"};
  for (const bool within : {false, true})
    for (size_t i : {size_t{0}, size_t{1}}) {
      const int64_t tile = p.node_tile.at(i), tiles = p.mesh.at(i) / tile, size = within ? tile : tiles;
      const bool only = tile == 1 || tiles == 1;  // the other factor has one rank
      if (size == 1 && (within || tile > 1)) continue;
      lines[i] |= AxisSet{1} << s.axes.size();
      s.axes.push_back({only ? std::string(names[i]) : format("{}{}", names[i], int{within}), size});
    }
  const AxisSet row = lines[0], col = lines[1];
  for (const size_t i : {size_t{0}, size_t{1}})
    if (s.find(names[i]) == 0) s.groups.push_back({names[i], lines[i]});
  const Transfer schedule = schedule_of(p.panels);
  const LinearSharding all{.rows = row, .cols = col, .flat = row, .schedule = schedule},
      input_stays{.rows = row, .contraction = col, .flat = row, .schedule = schedule};
  const sharding::Spread square{.rows = row, .cols = col};
  cut_all(s, config,
          {.stream = square,
           .attention = square,
           .mlp = square,
           .linears = {{Site::qkv, all},
                       {Site::out, all},
                       {Site::up, all},
                       {Site::down, p.stationary == Stationary::automatic ? input_stays : all}},
           .context = {p.context > 1 ? row : AxisSet{0}, schedule_of(p.context_kv)}});
  s.table = {.vocab = col, .flat = row};
  return keeping(s, config);
}

void each_optimus(const Config& config, int64_t ranks, const Visit& visit) {
  Parallel p = config.parallel;
  int64_t own = 1;
  for (const int64_t extent : p.mesh) own *= extent;
  if (own == ranks && own > 1) visit(p);  // may be one that is not visited below: [1, 1, d] or [q, q, 1]
  const std::vector<int64_t> given = p.node_tile, none = {1, 1};
  for (int64_t q = 2; q * q <= ranks; ++q) {
    if (ranks % (q * q) != 0) continue;
    const int64_t depth = ranks / (q * q);
    p.mesh = depth == 1 ? std::vector<int64_t>{q, q} : std::vector<int64_t>{q, q, depth};
    p.context = searched_context(config, q, config.train.micro_batch / depth);
    if (p.context > 1 && config.parallel.context == 0) p.context = q;
    for (const bool tiles : {true, false}) {
      p.node_tile = tiles ? given : none;
      if ((!tiles && given == none) || q % p.node_tile.at(0) != 0 || q % p.node_tile.at(1) != 0) continue;
      const bool gather = config.parallel.panels == Panels::gather;
      for (const Panels panels : {gather ? Panels::gather : Panels::automatic, Panels::ring}) {
        p.panels = panels;
        visit(p);
      }
    }
  }
}

/// Visits variants of `config`: the other choice of stationary matrix, cached weights, and tiles of one node's ranks.
void optimus_variants(const Config& config, int64_t devices_per_node, const Visit& visit) {
  common_variants(config, devices_per_node, visit);
  Parallel p = config.parallel;
  p.stationary = p.stationary == Stationary::automatic ? Stationary::paper : Stationary::automatic;
  visit(p);
  p.stationary = config.parallel.stationary;
  if (sharding_of(config).ranks(~AxisSet{0}) <= devices_per_node) return;
  for (const int64_t rows : divisors(devices_per_node)) {
    p.node_tile = {rows, devices_per_node / rows};
    if (rows > 1 && p.mesh.at(0) % rows == 0 && p.mesh.at(1) % p.node_tile[1] == 0) visit(p);
  }
}

void check_optimus(const Config& config, std::vector<BrokenRule>& broken) {
  const Parallel& p = config.parallel;
  check_size("parallel.mesh", p.mesh, 2, 3, "two sizes [q, q] or three [q, q, d]", broken);
  check_size("parallel.node_tile", p.node_tile, 2, 2, "two sizes [r, c]", broken);
  const bool checked = p.panels == Panels::ring;  // that schedule has a rule for this itself
  if (broken.empty() && !checked && p.mesh[0] != p.mesh[1])
    broken.push_back({{"parallel.mesh"},
                      format("mesh = [{}, {}] is not square; use [{}, {}]", p.mesh[0], p.mesh[1],
                             std::min(p.mesh[0], p.mesh[1]), std::min(p.mesh[0], p.mesh[1]))});
  if (p.stationary == Stationary::paper && config.model.n_expert > 0 && broken.empty() && p.mesh[1] > 1)
    broken.push_back(
        {{"parallel.stationary", "model.n_expert"},
         format("\"paper\" splits columns of down, but experts need whole rows (n_expert = {}); use stationary = "
                "\"auto\"",
                config.model.n_expert)});
  if (!broken.empty()) return;
  if (p.context != 1 && p.context != p.mesh[0])
    broken.push_back({{"parallel.context", "parallel.mesh"},
                      format("optimus-2d shares sequences among all ranks of axis row: use {}",
                             one_of(p.mesh[0] > 1 ? std::vector<int64_t>{1, p.mesh[0]} : std::vector<int64_t>{1}))});
  if (p.mesh[0] % p.node_tile[0] == 0 && p.mesh[1] % p.node_tile[1] == 0) return;
  broken.push_back({{"parallel.node_tile", "parallel.mesh"},
                    format("node_tile = [{}, {}] does not divide a mesh of {} x {} ranks; use node_tile = [{}, {}]",
                           p.node_tile[0], p.node_tile[1], p.mesh[0], p.mesh[1], std::gcd(p.mesh[0], p.node_tile[0]),
                           std::gcd(p.mesh[1], p.node_tile[1]))});
}

// AxoNN-4D: three-dimensional tensor parallelism combined with data parallelism (Singh et al. 2023, 2024), over axes x,
// y and z. Linears that read the residual stream split the contraction over y and the columns over x. Those that write
// it split the contraction over x and the columns over y, so activations need no redistribution within a transformer
// block. z splits the token rows (whole sequences). Each rank along z stores a flat shard of its block of each matrix;
// the block is all-gathered before use.
//
//   N rows of a replica, hidden H, heads A, feed-forward F          on a rank
//   residual stream, norms            rows over z, columns over y    [N/z, H/y]
//   q, k, v and attention             rows over z, heads over x      [N/z, 3H/x]
//   feed-forward                      rows over z, columns over x    [N/z, F/x]
//   W of qkv and up                   [H/y, ·/x], 1/z of it          gathered over z; Y reduced over y, dX over x
//   W of out and down                 [·/x, H/y], 1/z of it          gathered over z; Y reduced over x, dX over y
//   table of embedding and head       [V/x, H/y], 1/z of it          logits reduced over y, dx over x
//     vocab_axes = "xy"               [V/xy, H], 1/z of it           x gathered over y; dx reduced over x and y
//
// Norms gather two values per row over y, forward and backward. Gradients of matrices are reduce-scattered over z in
// each micro-batch; those of biases, norms and positions are all-reduced once per step. Special cases: [t, 1, 1] is
// Megatron-1D without sequence parallelism, [1, 1, z] is FSDP.
//
// With parallel.context = c, groups of c of the z ranks share sequences, and attention exchanges keys and values.
//
// Results equal those of one rank. The public code differs in three points: it does not reduce the gradients of biases
// over z, it normalises over a rank's part of a row, and it clips by norms that differ between ranks.
ModelSharding axonn(const Config& config) {
  const Parallel& p = config.parallel;
  ModelSharding s = over(config, {});
  const char* const order = kAxisOrderNames[static_cast<size_t>(p.order)];
  for (size_t i = 3; i-- > 0;) {  // the order lists the innermost axis first; axes are outermost first
    const int64_t extent = p.grid.at(static_cast<size_t>(order[i] - 'x'));
    if (order[i] != 'z' || p.context == 1) {
      s.axes.push_back({std::string(1, order[i]), extent});
      continue;
    }
    s.groups.push_back({"z", AxisSet{3} << s.axes.size()});
    s.axes.push_back({"batch", extent / p.context});
    s.axes.push_back({"context", p.context});
  }
  const AxisSet x = s.find("x"), y = s.find("y"), z = s.find("z");
  const LinearSharding read{.rows = z, .cols = x, .contraction = y, .flat = z},
      write{.rows = z, .cols = y, .contraction = x, .flat = z};
  cut_all(s, config,
          {.stream = {.rows = z, .cols = y},
           .attention = {.rows = z, .cols = x},
           .mlp = {.rows = z, .cols = x},
           .linears = {{Site::qkv, read}, {Site::out, write}, {Site::up, read}, {Site::down, write}},
           .context = {s.find("context"), schedule_of(p.context_kv)}});
  const bool both = p.vocab_axes == VocabAxes::xy;  // automatic: not chosen yet (choose_vocab_axes), so as x
  if (both && s.ranks(x) > 1 && s.ranks(y) > 1) s.groups.push_back({"xy", x | y});
  s.table = {.vocab = both ? x | y : x, .width = both ? AxisSet{0} : y, .flat = z};
  return keeping(s, config);
}

void each_axonn(const Config& config, int64_t ranks, const Visit& visit) {
  Parallel p = config.parallel;
  for (const int64_t x : divisors(ranks))
    for (const int64_t y : divisors(ranks / x)) {
      p.grid = {x, y, ranks / (x * y)};
      p.context = searched_context(config, p.grid[2], config.train.micro_batch);
      visit(p);
    }
}

void axonn_variants(const Config& config, int64_t devices_per_node, const Visit& visit) {
  Parallel p = config.parallel;
  if (sharding_of(config).ranks(~AxisSet{0}) > devices_per_node)
    for (size_t order = 0; order < std::size(kAxisOrderNames); ++order) {
      p.order = static_cast<AxisOrder>(order);
      visit(p);
    }
  common_variants(config, devices_per_node, visit);
}

void check_axonn(const Config& config, std::vector<BrokenRule>& broken) {
  check_size("parallel.grid", config.parallel.grid, 3, 3, "three sizes [x, y, z]", broken);
  if (!broken.empty()) return;
  const int64_t z = config.parallel.grid[2], context = config.parallel.context;
  if (z % context != 0)
    broken.push_back({{"parallel.context", "parallel.grid"},
                      format("{} does not divide z = {} of parallel.grid; use {}", context, z, one_of(divisors(z)))});
}

}  // namespace

constinit const NamedStrategy kOptimus = {
    StrategyName::optimus_2d, "optimus-2d", "parallel.mesh", optimus, each_optimus, optimus_variants, check_optimus};
constinit const NamedStrategy kAxonn = {StrategyName::axonn_4d, "axonn-4d", "parallel.grid", axonn, each_axonn,
                                        axonn_variants,         check_axonn};

}  // namespace trainer::config
