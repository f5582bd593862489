#include "config/strategies.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/format.h"
#include "base/join.h"
#include "base/shape.h"
#include "config/context.h"
#include "config/sharding_spec.h"
#include "config/strategy_rows.h"

namespace trainer::config {

using sharding::Axis;
using sharding::AxisSet;
using sharding::Layer;
using sharding::LinearSharding;
using sharding::ModelSharding;
using sharding::Site;
using sharding::Transfer;

// The named strategies as points in one space of shardings. r: rows, c: columns, k: contraction dimension, f: rows,
// with the weights in flat shards, s: rows, tokens of a sequence included (Layer::context), v: vocabulary, h: hidden,
// -: replicated.
//
// clang-format off
//   strategy        axes      stream  attention  hidden  qkv  out  up   down  head  table
//   Megatron-1D     t         r       c          c       c    k    c    k     r     v      without sequence parallelism: stream, head -
//                   e c t     rrr     rsc        rrc     rfc  rfk  rfc  rfk   rrr   -fv    with experts and context; experts e--
//   FSDP            z         r       r          r       f    f    f    f     r     f
//                   z e       rr      rr         rr      ff   ff   ff   ff    rr    ff     with experts: -e
//                   z c h     rrr     rsc        rrr     fff  fff  fff  fff   rrr   fff    context: tokens and heads
//   Optimus-2D      row col   rc      rc         rc      fc   fc   fc   fk    rc    fv     context: attention sc
//   AxoNN-4D        z x y     r-c     rc-        rc-     fck  fkc  fck  fkc   r-c   fvh    context: two axes for z, attention rsc-
// Optimus-2D with stationary = "paper": down fc. AxoNN-4D with vocab_axes = "xy": table fvv.
// clang-format on

ModelSharding over(const Config& config, std::vector<Axis> axes) {
  ModelSharding s;
  s.axes = std::move(axes);
  s.axes.insert(s.axes.begin(), {"data", std::max<int64_t>(1, config.parallel.data)});
  return s;
}

void cut_all(ModelSharding& s, const Config& config, Layer layer) {
  layer.count = config.model.n_layer;
  s.layers = {layer};
  s.head = layer.stream;
}

ModelSharding keeping(ModelSharding s, const Config& config) {
  int64_t kept = config.parallel.cache_layers;
  s.table.keep = kept > 0;
  for (size_t l = 0; l < s.layers.size() && kept > 0; ++l) {
    if (kept < s.layers[l].count) {
      s.layers.insert(s.layers.begin() + static_cast<std::ptrdiff_t>(l), s.layers[l]);
      s.layers[l].count = kept;
      s.layers[l + 1].count -= kept;
    }
    for (auto& [site, linear] : s.layers[l].linears) linear.keep = linear.schedule == Transfer::at_once;
    kept -= s.layers[l].count;
  }
  return s;
}

void check_size(const char* key, const std::vector<int64_t>& extents, size_t least, size_t most, const char* form,
                std::vector<BrokenRule>& broken) {
  if (extents.size() < least || extents.size() > most)
    broken.push_back({{key}, format("expected {}, found {}", form, extents.size())});
}

void common_variants(const Config& config, int64_t, const Visit& visit) {
  Parallel p = config.parallel;
  p.cache_layers = config.model.n_layer;
  if (config.parallel.cache_layers == 0 && sharding_of(config).gathers_weights()) visit(p);
  p = config.parallel;
  if (p.context == 1) return;
  const bool fsdp = p.strategy == StrategyName::fsdp;
  for (const int64_t heads : fsdp ? divisors(p.context) : std::vector<int64_t>{p.context_heads}) {
    p.context_heads = heads;
    const std::vector<Panels> ways =
        heads < p.context ? std::vector{Panels::gather, Panels::ring} : std::vector{Panels::automatic};
    for (const Panels kv : ways) {
      p.context_kv = kv;
      visit(p);
    }
  }
}

int64_t searched_context(const Config& config, int64_t ranks, int64_t sequences) {
  const int64_t fewest = ranks / std::gcd(ranks, sequences);
  return config.parallel.context > 0 ? config.parallel.context : splits_well(config, fewest) ? fewest : 1;
}

namespace {

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
//
// With parallel.experts = e, a replica has e groups of T ranks with different sequences and different experts. All
// other weights are copies in these groups, with gradients all-reduced over them.
//
// With parallel.context = c, c groups of T ranks share sequences: each has some rows of every one, and attention
// exchanges keys and values (attention_core.h). Weights are in flat shards over the groups, as in FSDP.
ModelSharding megatron(const Config& config) {
  const Parallel& p = config.parallel;
  std::vector<Axis> axes;
  if (p.experts > 1) axes.push_back({"experts", p.experts});
  if (p.context > 1) axes.push_back({"context", p.context});
  axes.push_back({"tensor", p.tensor});
  ModelSharding s = over(config, std::move(axes));
  const AxisSet t = s.find("tensor"), e = s.find("experts"), c = s.find("context"), r = e | c;
  const LinearSharding columns{.rows = r, .cols = t, .flat = c}, rows{.rows = r, .contraction = t, .flat = c};
  cut_all(s, config,
          {.stream = {.rows = p.sequence_parallel ? r | t : r},
           .attention = {.rows = r, .cols = t},
           .mlp = {.rows = r, .cols = t},
           .linears = {{Site::qkv, columns}, {Site::out, rows}, {Site::up, columns}, {Site::down, rows}},
           .experts = e,
           .context = {c, schedule_of(p.context_kv)}});
  s.table = {.vocab = t, .flat = c};
  return keeping(s, config);
}

/// Returns the numbers of ranks that can divide the experts, if `ranks` ranks have different rows.
std::vector<int64_t> ranks_of_experts(const Config& config, int64_t ranks) {
  return divisors(config.model.n_expert == 0 ? 1 : std::gcd(config.model.n_expert, ranks));
}

/// Adds an error if parallel.experts ranks cannot divide the experts.
void check_ranks_of_experts(const Config& config, std::vector<BrokenRule>& broken) {
  const int64_t ranks = config.parallel.experts, experts = config.model.n_expert;
  if (ranks == 1 || (experts > 0 && experts % ranks == 0)) return;
  broken.push_back({{"parallel.experts", "model.n_expert"},
                    experts == 0 ? "the model has no experts (model.n_expert = 0); remove it"
                                 : format("{} ranks cannot divide n_expert = {} evenly; use one of {}", ranks, experts,
                                          fmt::join(divisors(experts), ", "))});
}

void each_megatron(const Config& config, int64_t ranks, const Visit& visit) {
  const Parallel& p = config.parallel;
  Parallel open = p;
  for (const int64_t context : divisors(ranks)) {
    if (p.context > 0 ? context != p.context : context > 1 && !splits_well(config, context)) continue;
    open.context = context;
    for (const int64_t experts : ranks_of_experts(config, ranks / context)) {
      open.experts = experts;
      open.tensor = ranks / (context * experts);
      for (const bool sequences : {true, false}) {
        open.sequence_parallel = sequences;
        visit(open);
      }
    }
  }
}

// FSDP: fully sharded data parallelism (Zhao et al. 2023), ZeRO stage 3 (Rajbhandari et al. 2020). Each of z ranks
// processes its own sequences of a micro-batch, and stores a flat shard of every matrix, of its gradient and of its
// optimizer state. A matrix is all-gathered before use, one linear ahead, and released after it; its gradient is
// reduce-scattered. Replicas of this layout are hybrid sharding (HSDP). With tensor parallelism it is AxoNN-4D's grid
// [t, 1, z].
//
// With parallel.context = c, groups of c of the z ranks share sequences: each of them has some rows of every one. In
// attention, u of them (parallel.context_heads) have the same rows and a part of the heads each, as in
// DeepSpeed-Ulysses (Jacobs et al. 2023): all-to-alls redistribute q, k, v and the output of attention. The other c/u
// keep different rows and exchange keys and values (attention_core.h).
//
// With parallel.experts = e, groups of e of the z ranks have different experts: each of them 1/e of every matrix of
// experts, in flat shards over the other z/e ranks only, and they exchange rows instead (parallel/exchange.h).
//
//   N rows of a replica, hidden H, feed-forward F    on a rank
//   activations                                      [N/z, H], [N/z, F]
//   q, k, v and attention                            [N/z, 3H]          context: [N·u/z, 3H/u]
//   W of any linear [in, out], table [V, H]          1/z of it          gathered over z, forward and backward
//   biases, norms, positions                         copies             gradients all-reduced over z once per step
//
// Elements that collectives over z communicate per micro-batch, with W matrix elements: all-gather 2W, reduce-scatter
// W, 1.5 times the all-reduce of plain data parallelism. With parallel.cache_layers, matrices are gathered once per
// step.
ModelSharding fsdp(const Config& config) {
  const int64_t shards = std::max<int64_t>(1, config.parallel.shards), context = config.parallel.context,
                experts = config.parallel.experts;
  ModelSharding s = over(config, {{"shards", shards}});
  AxisSet by_heads = 0;
  if (context * experts > 1) {
    std::vector<Axis> axes = {{"batch", shards / (context * experts)}};
    if (experts > 1) axes.push_back({"experts", experts});
    const int64_t heads = context_heads(config);
    const bool both = heads > 1 && heads < context;
    if (both) axes.insert(axes.end(), {{"tokens", context / heads}, {"heads", heads}});
    if (!both && context > 1) axes.push_back({"context", context});
    s = over(config, std::move(axes));
    if (shards > context) s.groups.push_back({"shards", s.all() & ~s.data()});
    if (both) s.groups.push_back({"context", s.find("tokens") | s.find("heads")});
    by_heads = both ? s.find("heads") : heads > 1 ? s.find("context") : AxisSet{0};
  }
  const AxisSet z = s.all() & ~s.data(), c = s.find("context");
  const LinearSharding gathered{.rows = z, .flat = z};
  const sharding::Spread rows{.rows = z};
  cut_all(s, config,
          {.stream = rows,
           .attention = {.rows = z & ~by_heads, .cols = by_heads},
           .mlp = rows,
           .linears = {{Site::qkv, gathered}, {Site::out, gathered}, {Site::up, gathered}, {Site::down, gathered}},
           .experts = s.find("experts"),
           .context = {c & ~by_heads, schedule_of(config.parallel.context_kv)}});
  s.table = {.flat = z};
  return keeping(s, config);
}

void each_fsdp(const Config& config, int64_t ranks, const Visit& visit) {
  Parallel p = config.parallel;
  p.shards = ranks;
  p.context = searched_context(config, ranks, config.train.micro_batch);
  if (ranks % p.context != 0) return;
  for (const int64_t experts : ranks_of_experts(config, ranks / p.context)) {
    p.experts = experts;
    visit(p);
  }
}

void check_fsdp(const Config& config, std::vector<BrokenRule>& broken) {
  check_ranks_of_experts(config, broken);
  const int64_t shards = config.parallel.shards, context = config.parallel.context;  // 0: not known yet
  const int64_t heads = config.parallel.context_heads, all = config.model.n_head;
  if (heads > 0 && context % heads != 0)
    broken.push_back({{"parallel.context_heads", "parallel.context"},
                      format("{} does not divide context = {}; use {}", heads, context, one_of(divisors(context)))});
  else if (heads > 0 && all % heads != 0)
    broken.push_back({{"parallel.context_heads", "model.n_head"},
                      format("{} does not divide n_head = {}; use {} (or 0)", heads, all,
                             one_of(divisors(std::gcd(context, all))))});
  const int64_t experts = config.parallel.experts;
  if (shards % context == 0) {
    if (shards % (context * experts) == 0) return;
    return broken.push_back({{"parallel.experts", "parallel.shards", "parallel.context"},
                             format("experts = {} does not divide shards / context = {}; use one of {}", experts,
                                    shards / context, fmt::join(ranks_of_experts(config, shards / context), ", "))});
  }
  broken.push_back({{"parallel.context", "parallel.shards"},
                    format("context = {} does not divide shards = {}, the ranks of a replica; use context = {}, or "
                           "shards = {}",
                           context, shards, std::gcd(context, shards), divide_up(shards, context) * context)});
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

constexpr const char* kMegatronFactors[] = {"experts", "context"};
constexpr NamedStrategy kMegatron = {
    StrategyName::megatron_1d, "megatron-1d",          "parallel.tensor", megatron, each_megatron,
    common_variants,           check_ranks_of_experts, kMegatronFactors};
constexpr NamedStrategy kFsdp = {StrategyName::fsdp, "fsdp",          "parallel.shards", fsdp,
                                 each_fsdp,          common_variants, check_fsdp};
constexpr NamedStrategy kAutoddl = {StrategyName::autoddl, "autoddl",   "parallel.axes", tables, each_table,
                                    common_variants,       check_tables};

constexpr const NamedStrategy* kStrategies[] = {&kMegatron, &kFsdp, &kOptimus, &kAxonn, &kAutoddl};

const NamedStrategy& row_of(StrategyName strategy) {
  const auto index = static_cast<size_t>(strategy);
  TRAINER_CHECK(index < std::size(kStrategies) && kStrategies[index]->id == strategy, "strategy {} is not in its row",
                index);
  return *kStrategies[index];
}

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

std::vector<std::vector<int64_t>> axis_lists(int64_t ranks, int64_t devices_per_node) {
  std::vector<std::vector<int64_t>> all;
  for (const int64_t first : divisors(ranks))
    for (const int64_t second : divisors(ranks / first)) {
      const int64_t third = ranks / first / second;
      if (first == 1 || (second == 1 && third > 1)) continue;
      std::vector<int64_t> list = {first, second, third};
      std::erase(list, 1);
      // If replicas span nodes, the ranks of a node form separate inner axes, so that neighbours use the faster
      // links.
      int64_t inner = 1;
      for (size_t i = list.size(); i-- > 0 && inner < devices_per_node;) inner *= list[i];
      if (inner == devices_per_node || ranks <= devices_per_node || list.size() == 1) all.push_back(std::move(list));
    }
  return all;
}

std::string one_of(const std::vector<int64_t>& values) {
  if (values.size() < 2) return format("{}", fmt::join(values, ""));
  return format("{} or {}", fmt::join(values.begin(), values.end() - 1, ", "), values.back());
}

std::span<const NamedStrategy* const> strategies() { return kStrategies; }

const char* name_of(StrategyName strategy) {
  return strategy == StrategyName::automatic ? "auto" : row_of(strategy).name;
}

const NamedStrategy& strategy_of(const Config& config) {
  const StrategyName strategy = config.parallel.strategy;
  return strategy == StrategyName::automatic ? *kStrategies[0] : row_of(strategy);
}

sharding::ModelSharding sharding_of(const Config& config) {
  sharding::ModelSharding s = strategy_of(config).sharding(config);
  s.overlap = config.parallel.overlap_all_reduce;
  s.wide_sums = config.parallel.sum_dtype == DType::f32;
  const Parallel& p = config.parallel;
  s.expert_buffer = p.expert_buffer;
  return add_stages(std::move(s), {p.stages, p.chunks, p.pipeline_schedule, p.stage_layers});
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
          .tied = m.tie_embeddings.value_or(false),
          .n_expert = m.n_expert,
          .d_expert = m.d_expert,
          .d_shared = m.d_shared,
          .moe_every = m.moe_every};
}

}  // namespace trainer::config
