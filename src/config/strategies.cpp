#include "config/strategies.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "base/format.h"
#include "base/join.h"
#include "base/shape.h"
#include "config/sharding_spec.h"

namespace trainer::config {
namespace {

using sharding::Axis;
using sharding::AxisSet;
using sharding::GemmSchedule;
using sharding::Layer;
using sharding::LinearSharding;
using sharding::ModelSharding;
using sharding::Site;
using Visit = std::function<void(const Parallel&)>;

// The named strategies as points in one space of shardings. r: rows, c: columns, k: contraction dimension, f: rows,
// with the weights in flat shards, v: vocabulary, h: hidden, -: replicated.
//
// clang-format off
//   strategy        axes      stream  attention  hidden  qkv  out  up   down  head  table
//   Megatron-1D     t         r       c          c       c    k    c    k     r     v      without sequence parallelism: stream, head -
//   FSDP            z         r       r          r       f    f    f    f     r     f      context: rows of attention c
//   Optimus-2D      row col   rc      rc         rc      fc   fc   fc   fk    rc    fv     stationary = "paper": down fc
//   AxoNN-4D        z x y     r-c     rc-        rc-     fck  fkc  fck  fkc   r-c   fvh    vocab_axes = "xy": table fvv
// clang-format on

/// Returns a sharding over the replicas and these axes, outermost first.
ModelSharding over(const Config& config, std::vector<Axis> axes) {
  ModelSharding s;
  s.axes = std::move(axes);
  s.axes.insert(s.axes.begin(), {"data", std::max<int64_t>(1, config.parallel.data)});
  return s;
}

/// Shards all layers of the model like `layer`.
void cut_all(ModelSharding& s, const Config& config, Layer layer) {
  layer.count = config.model.n_layer;
  s.layers = {layer};
  s.head = layer.stream;
}

/// Keeps the gathered weights of the first parallel.cache_layers, and the gathered tables if that is above 0.
ModelSharding keeping(ModelSharding s, const Config& config) {
  int64_t kept = config.parallel.cache_layers;
  s.table.keep = kept > 0;
  for (size_t l = 0; l < s.layers.size() && kept > 0; ++l) {
    if (kept < s.layers[l].count) {
      s.layers.insert(s.layers.begin() + static_cast<std::ptrdiff_t>(l), s.layers[l]);
      s.layers[l].count = kept;
      s.layers[l + 1].count -= kept;
    }
    for (auto& [site, linear] : s.layers[l].linears) linear.keep = linear.schedule == GemmSchedule::at_once;
    kept -= s.layers[l].count;
  }
  return s;
}

/// Requires a list whose number of extents is in [least, most].
void check_size(const char* key, const std::vector<int64_t>& extents, size_t least, size_t most, const char* form,
                std::vector<BrokenRule>& broken) {
  if (extents.size() < least || extents.size() > most)
    broken.push_back({{key}, format("expected {}, found {}", form, extents.size())});
}

/// If weights are gathered, visits the setting that keeps them in all layers (parallel.cache_layers = n_layer).
void with_cache(const Config& config, const Visit& visit) {
  if (config.parallel.cache_layers > 0 || !sharding_of(config).gathers_weights()) return;
  Parallel p = config.parallel;
  p.cache_layers = config.model.n_layer;
  visit(p);
}

// Megatron-1D: tensor parallelism over one axis (Shoeybi et al. 2019), with sequence parallelism (Korthikanti et al.
// 2022). Linears that read the residual stream are column-parallel, those that write it row-parallel: each of T ranks
// has 1/T of their columns or rows, and 1/T of the attention heads and of the vocabulary. The residual stream is
// replicated on all ranks, or, with sequence parallelism, split by token rows.
//
//   rows of a batch N, hidden H            without                with sequence parallelism
//   residual stream, norms                 [N, H]                 [N/T, H], rank r has rows r·N/T …
//   qkv, up:   weight [H, F/T]             x [N, H]               x gathered before the GEMM
//     backward                             Σ dx  (all-reduce)     x gathered again, dx reduce-scattered
//   out, down: weight [F/T, H]             Σ y   (all-reduce)     y reduce-scattered
//     backward                             nothing                dy gathered
//
// Elements passed to collectives over the axis per micro-batch, forward and backward, with L layers, B = N·H and no
// recomputation:
//   without: all-reduce (4L + 2)·B + 3N
//   with:    all-gather (6L + 2)·B, reduce-scatter (4L + 2)·B, all-reduce 3N; and once per step an all-reduce of
//            the gradients that each rank has summed over its own rows: norms, biases of linears that write the
//            stream, positions.
// If ranks share key/value heads, the gradients of these heads' weights and biases are all-reduced over those ranks
// once per step. The head gathers its input once for loss and gradients together; a head with a separate backward pass
// would gather it twice. Full recomputation repeats each layer's forward collectives except the last one, whose result
// is not needed.
ModelSharding megatron(const Config& config) {
  ModelSharding s = over(config, {{"tensor", config.parallel.tensor}});
  const AxisSet t = s.find("tensor");
  const LinearSharding columns{.cols = t}, rows{.contraction = t};
  cut_all(s, config,
          {.stream = {.rows = config.parallel.sequence_parallel ? t : AxisSet{0}},
           .attention = {.cols = t},
           .hidden = {.cols = t},
           .linears = {{Site::qkv, columns}, {Site::out, rows}, {Site::up, columns}, {Site::down, rows}}});
  s.table = {.vocab = t};
  return s;
}

void each_megatron(const Config& config, int64_t ranks, const Visit& visit) {
  Parallel p = config.parallel;
  p.tensor = ranks;
  for (const bool sequences : {true, false}) {
    p.sequence_parallel = sequences;
    visit(p);
  }
}

// FSDP: fully sharded data parallelism (Zhao et al. 2023), ZeRO stage 3 (Rajbhandari et al. 2020). Each of z ranks
// processes its own sequences of a micro-batch, and stores a flat shard of every matrix, of its gradient and of its
// optimizer state. A matrix is all-gathered before use, one linear ahead, and released after it; its gradient is
// reduce-scattered. Replicas of this layout are hybrid sharding (HSDP). With tensor parallelism it is AxoNN-4D's grid
// [t, 1, z].
//
// With parallel.context = c, groups of c of the z ranks share sequences, as in DeepSpeed-Ulysses (Jacobs et al. 2023):
// outside attention each of them has a part of the rows of a sequence, in attention a part of the heads. All-to-alls
// redistribute q, k, v and the output of attention in between.
//
//   N rows of a replica, hidden H, feed-forward F    on a rank
//   activations                                      [N/z, H], [N/z, F]
//   q, k, v and attention                            [N/z, 3H]          context: [N·c/z, 3H/c]
//   W of any linear [in, out], table [V, H]          1/z of it          gathered over z, forward and backward
//   biases, norms, positions                         copies             gradients all-reduced over z once per step
//
// Elements that collectives over z communicate per micro-batch, with W matrix elements: all-gather 2W, reduce-scatter
// W, 1.5 times the all-reduce of plain data parallelism. With parallel.cache_layers, matrices are gathered once per
// step.
ModelSharding fsdp(const Config& config) {
  const int64_t shards = std::max<int64_t>(1, config.parallel.shards), context = config.parallel.context;
  ModelSharding s = over(config, {{"shards", shards}});
  if (context > 1) {
    s = over(config, {{"batch", shards / context}, {"context", context}});
    s.groups.push_back({"shards", s.all() & ~s.data()});
  }
  const AxisSet z = s.find("shards"), c = s.find("context");
  const LinearSharding gathered{.rows = z, .flat = z};
  const sharding::Spread rows{.rows = z};
  cut_all(s, config,
          {.stream = rows,
           .attention = {.rows = z & ~c, .cols = c},
           .hidden = rows,
           .linears = {{Site::qkv, gathered}, {Site::out, gathered}, {Site::up, gathered}, {Site::down, gathered}}});
  s.table = {.flat = z};
  return keeping(s, config);
}

void each_fsdp(const Config& config, int64_t ranks, const Visit& visit) {
  Parallel p = config.parallel;
  p.shards = ranks;
  if (ranks % p.context == 0) visit(p);
}

void check_fsdp(const Config& config, std::vector<BrokenRule>& broken) {
  const int64_t shards = config.parallel.shards, context = config.parallel.context;  // 0: not known yet
  if (const int64_t heads = config.model.n_head; heads % context != 0)
    broken.push_back({{"parallel.context", "model.n_head"},
                      format("context = {} does not divide n_head = {}; use one of {}", context, heads,
                             fmt::join(divisors(heads), ", "))});
  if (shards % context == 0) return;
  broken.push_back({{"parallel.context", "parallel.shards"},
                    format("context = {} does not divide shards = {}, the ranks of a replica; use context = {}, or "
                           "shards = {}",
                           context, shards, std::gcd(context, shards), divide_up(shards, context) * context)});
}

void caching_variants(const Config& config, int64_t, const Visit& visit) { with_cache(config, visit); }

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
  const GemmSchedule schedule = p.panels == Panels::ring ? GemmSchedule::ring : GemmSchedule::at_once;
  const LinearSharding all{.rows = row, .cols = col, .flat = row, .schedule = schedule},
      input_stays{.rows = row, .contraction = col, .flat = row, .schedule = schedule};
  const sharding::Spread square{.rows = row, .cols = col};
  cut_all(s, config,
          {.stream = square,
           .attention = square,
           .hidden = square,
           .linears = {{Site::qkv, all},
                       {Site::out, all},
                       {Site::up, all},
                       {Site::down, p.stationary == Stationary::automatic ? input_stays : all}}});
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
  with_cache(config, visit);
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
  if (!broken.empty()) return;
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
// Results equal those of one rank. The public code differs in three points: it does not reduce the gradients of biases
// over z, it normalises over a rank's part of a row, and it clips by norms that differ between ranks.
ModelSharding axonn(const Config& config) {
  const Parallel& p = config.parallel;
  ModelSharding s = over(config, {});
  const char* const order = kAxisOrderNames[static_cast<size_t>(p.order)];
  for (size_t i = 3; i-- > 0;)  // the order lists the innermost axis first; axes are outermost first
    s.axes.push_back({std::string(1, order[i]), p.grid.at(static_cast<size_t>(order[i] - 'x'))});
  const AxisSet x = s.find("x"), y = s.find("y"), z = s.find("z");
  const LinearSharding read{.rows = z, .cols = x, .contraction = y, .flat = z},
      write{.rows = z, .cols = y, .contraction = x, .flat = z};
  cut_all(s, config,
          {.stream = {.rows = z, .cols = y},
           .attention = {.rows = z, .cols = x},
           .hidden = {.rows = z, .cols = x},
           .linears = {{Site::qkv, read}, {Site::out, write}, {Site::up, read}, {Site::down, write}}});
  const bool both = p.vocab_axes == VocabAxes::xy;  // automatic: not chosen yet (choose_vocab_axes), so as x
  if (both && s.ranks(x) > 1 && s.ranks(y) > 1) s.groups.push_back({"xy", x | y});
  s.table = {.vocab = both ? x | y : x, .hidden = both ? AxisSet{0} : y, .flat = z};
  return keeping(s, config);
}

void each_axonn(const Config& config, int64_t ranks, const Visit& visit) {
  Parallel p = config.parallel;
  for (const int64_t x : divisors(ranks))
    for (const int64_t y : divisors(ranks / x)) {
      p.grid = {x, y, ranks / (x * y)};
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
  with_cache(config, visit);
}

void check_axonn(const Config& config, std::vector<BrokenRule>& broken) {
  check_size("parallel.grid", config.parallel.grid, 3, 3, "three sizes [x, y, z]", broken);
}

// AutoDDL: every layer is sharded as its table specifies, with one letter for each axis. Neighbouring layers may
// differ; activations are then redistributed between them (mesh/route.h).
ModelSharding tables(const Config& config) { return keeping(parse_tables(config), config); }

void each_table(const Config& config, int64_t ranks, const Visit& visit) {
  const Parallel& p = config.parallel;
  if (!p.layer.empty() && std::accumulate(p.axes.begin(), p.axes.end(), int64_t{1}, std::multiplies<>()) == ranks)
    visit(p);
}

void check_tables(const Config& config, std::vector<BrokenRule>& broken) {
  constexpr size_t kMostAxes = 6;
  check_size("parallel.axes", config.parallel.axes, 1, kMostAxes, "one to six axis sizes", broken);
  check_spec(config, broken);
}

void no_variants(const Config&, int64_t, const Visit&) {}

constexpr NamedStrategy kStrategies[] = {
    {StrategyName::megatron_1d, "megatron-1d", "parallel.tensor", megatron, each_megatron, no_variants},
    {StrategyName::fsdp, "fsdp", "parallel.shards", fsdp, each_fsdp, caching_variants, check_fsdp},
    {StrategyName::optimus_2d, "optimus-2d", "parallel.mesh", optimus, each_optimus, optimus_variants, check_optimus},
    {StrategyName::axonn_4d, "axonn-4d", "parallel.grid", axonn, each_axonn, axonn_variants, check_axonn},
    {StrategyName::autoddl, "autoddl", "parallel.axes", tables, each_table, caching_variants, check_tables},
};
static_assert(std::ranges::equal(kStrategies, std::views::iota(0, static_cast<int>(StrategyName::automatic)), {},
                                 [](const NamedStrategy& row) { return static_cast<int>(row.id); }),
              "the rows are in the order of StrategyName");

}  // namespace

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d != n / d) all.push_back(n / d);
  }
  std::ranges::sort(all);
  return all;
}

std::span<const NamedStrategy> strategies() { return kStrategies; }

const char* name_of(StrategyName strategy) {
  return strategy == StrategyName::automatic ? "auto" : kStrategies[static_cast<size_t>(strategy)].name;
}

const NamedStrategy& strategy_of(const Config& config) {
  const StrategyName strategy = config.parallel.strategy;
  return kStrategies[strategy == StrategyName::automatic ? 0 : static_cast<size_t>(strategy)];
}

sharding::ModelSharding sharding_of(const Config& config) {
  sharding::ModelSharding s = strategy_of(config).sharding(config);
  s.overlap = config.parallel.overlap_all_reduce;
  s.wide_sums = config.parallel.sum_dtype == DType::f32;
  return s;
}

sharding::Extents extents_of(const Config& config) {
  const Model& m = config.model;
  return {.n_layer = m.n_layer,
          .n_head = m.n_head,
          .n_kv_head = m.n_kv_head > 0 ? m.n_kv_head : m.n_head,
          .head_dim = head_size(m),
          .d_model = m.d_model,
          .d_ff = m.d_ff,
          .vocab_multiple = m.vocab_multiple,
          .micro_batch = config.train.micro_batch,
          .seq_len = m.seq_len,
          .tied = m.tie_embeddings.value_or(false)};
}

}  // namespace trainer::config
