#include "sharding/rules.h"

#include <algorithm>

#include "base/join.h"

namespace trainer::sharding {
namespace {

using Rule = Violation::Rule;

/// The name and the unit of an extent.
struct Words {
  const char *name, *unit;
};
constexpr Words kWords[] = {{"n_layer", ""},
                            {"n_head", " heads"},
                            {"n_kv_head", " heads"},
                            {"width of all queries", ""},
                            {"width of all keys", ""},
                            {"d_model", ""},
                            {"d_ff", ""},
                            {"vocab_multiple", ""},
                            {"micro_batch", " sequences"},
                            {"micro_batch x seq_len", " token rows"},
                            {"tie_embeddings", ""},
                            {"d_expert", ""},
                            {"d_shared", ""},
                            {"n_expert", " experts"},
                            {"seq_len", ""}};

constexpr const char* kSiteNames[] = {"qkv", "out", "up", "down"};

/// Message texts, indexed by Rule.
constexpr const char* kTexts[] = {
    "{where}{name} = {value}{unit} cannot be split evenly over {ranks} ranks along {axes}, which {what}{site}",
    "the sharding describes {value} layers instead of n_layer",
    "{where}n_kv_head = {value} heads can neither be split evenly over {ranks} ranks along {axes} nor each be shared "
    "by the same number of ranks",
    "the table is stored in flat shards along {axes}, which requires that these axes also split the rows at the head "
    "(split along {others})",
    "embedding and head share one table, but rows are split along {axes} at the embedding and along {others} at the "
    "head; set tie_embeddings = false to use two tables",
    "{axes} splits both the table and rows at the head, so it must come later among the axes than {others}, which "
    "splits rows only",
    "{where}the ring schedule of {site} requires a square mesh of ranks: one side splits rows and the weight's shards, "
    "the "
    "other columns, in the linear and in the activations around it; found {ranks} x {other_ranks} ranks along {axes} "
    "and {others}",
    "{where}{site} is split in conflicting ways along {axes}: an axis may split rows, columns or the contraction, and "
    "may shard the weight only if it splits rows",
    "{where}{axes} splits {what}{site}, but the experts of a layer need whole rows: the partial sums would be of "
    "experts_per_token rows for each token",
    "{where}up, hidden and down of a layer with experts must be split in the same way, but they differ along {axes}: "
    "rows along the same axes, columns of up as columns of hidden and the contraction of down",
    "{where}the ring schedule of {site} needs equally many rows on each rank, but experts have any number of rows; use "
    "at_once (panels = \"gather\")",
    "{where}experts are divided along {axes}, so ranks along {axes} must have different token rows: {others} must "
    "split rows of stream, hidden, up and down",
    "{where}{axes} divides experts, but the model has none",
    "{where}{ranks} ranks along {axes} split the tokens of a sequence into {segments} equal segments, which do not "
    "divide "
    "seq_len = {value}",
    "{where}{axes} splits the tokens of sequences, so it must split rows of attention",
    "{where}attention must split rows along the same axes in all layers if sequences are shared, since a batch has one "
    "order of rows, but layers differ along {axes}"};

/// Checks the rules in order and calls found(violation) for each violated rule until found() returns true.
template <typename Found>
class Check {
 public:
  Check(const ModelSharding& s, const Extents& e, const Found& found) : s_(s), e_(e), found_(found) {}

  void run() {
    int64_t layers = 0;
    for (const Layer& layer : s_.layers) {
      layer_ = layers;
      layers += layer.count;
      const int64_t moe = e_.n_expert == 0 ? 0 : layers / e_.moe_every - layer_ / e_.moe_every;
      dense_ = moe < layer.count;
      moe_ = moe > 0;
      check(layer);
      if (moe_) experts(layer);
      require(e_.n_expert > 0 || s_.wide(layer.experts) == 0,
              {.rule = Rule::no_experts, .extent = Extent::n_expert, .axes = layer.experts});
    }
    one_order();
    layer_ = -1;
    require(layers == e_.n_layer, {.rule = Rule::layers, .extent = Extent::n_layer, .value = layers});
    stream(s_.head, "split rows at the head", "split columns at the head");
    table();
  }

 private:
  void require(bool holds, Violation violation) {
    if (holds || done_) return;
    violation.layer = layer_;
    done_ = found_(violation);
  }
  void divides(Extent extent, int64_t value, AxisSet axes, const char* what, const char* site = "") {
    const bool holds = value % s_.ranks(axes) == 0;
    require(holds, {.extent = extent, .value = value, .axes = axes, .what = what, .site = site});
  }
  void token_rows(AxisSet axes, const char* what, const char* site = "") {
    divides(Extent::token_rows, e_.micro_batch / s_.depth() * e_.seq_len, axes, what, site);
  }
  int64_t head_dim() const { return e_.head_dim > 0 || e_.n_head == 0 ? e_.head_dim : e_.d_model / e_.n_head; }
  /// Checks the width of the queries and of the attention output; reports d_model if it equals that.
  void query_width(AxisSet axes, const char* what, const char* site) {
    const int64_t queries = head_dim() * e_.n_head;
    divides(queries == e_.d_model ? Extent::d_model : Extent::query_width, queries, axes, what, site);
  }
  void width(bool of_ff, AxisSet axes, const char* what, const char* site = "") {
    if (!of_ff) return divides(Extent::d_model, e_.d_model, axes, what, site);
    if (dense_) divides(Extent::d_ff, e_.d_ff, axes, what, site);
    if (moe_) divides(Extent::d_expert, e_.d_expert, axes, what, site);
    if (moe_) divides(Extent::d_shared, e_.d_shared, axes, what, site);
  }
  void stream(Spread spread, const char* rows, const char* cols) {
    token_rows(spread.rows, rows);
    width(false, spread.cols, cols);
  }

  void check(const Layer& layer) {
    const Spread attention = layer.attention, mlp = layer.mlp;
    divides(Extent::n_head, e_.n_head, attention.cols, "hold whole heads");
    const int64_t kv = e_.n_kv_head, sharers = s_.ranks(attention.cols);
    require(kv % sharers == 0 || shares_evenly(attention.cols),
            {.rule = Rule::shares_heads, .extent = Extent::n_kv_head, .value = kv, .axes = attention.cols});
    divides(Extent::micro_batch, e_.micro_batch, (attention.rows & ~layer.context.axes) | s_.depth_axes(),
            "hold whole sequences");
    context(layer);
    stream(layer.stream, "split rows of the residual stream", "split columns of the residual stream");
    token_rows(mlp.rows, "split rows between up and down");
    width(true, mlp.cols, "split columns between up and down");

    for (const auto& [site, linear] : layer.linears) {
      const char* const name = kSiteNames[static_cast<size_t>(site)];
      // If the same axes split attention's heads and qkv's columns or out's contraction, the rules on heads apply
      // instead of those on widths.
      const bool own_cols = site != Site::qkv || linear.cols != attention.cols;
      if (own_cols && site == Site::qkv) {
        query_width(linear.cols, "split columns of ", name);
        divides(Extent::key_width, head_dim() * kv, linear.cols, "split columns of ", name);
      } else if (own_cols) {
        width(site == Site::up, linear.cols, "split columns of ", name);
      }
      if (site != Site::out) {
        width(site == Site::down, linear.contraction, "split the contraction of ", name);
      } else if (linear.contraction != attention.cols) {
        query_width(linear.contraction, "split the contraction of ", name);
      }
      token_rows(linear.rows, "split rows of ", name);
      const AxisSet twice = (linear.rows & linear.cols) | (linear.rows & linear.contraction) |
                            (linear.cols & linear.contraction) | (linear.flat & ~linear.rows);
      require(twice == 0, {.rule = Rule::disjoint, .axes = twice, .site = name});
      if (linear.schedule == Transfer::ring) ring(layer, linear, site, name);
    }
  }

  /// The rules for ranks that have different rows of the same sequences: two segments of a sequence each.
  void context(const Layer& layer) {
    const AxisSet axes = layer.context.axes, copies = s_.wide(axes & ~layer.attention.rows);
    require(s_.wide(axes) == 0 || e_.seq_len % (2 * s_.ranks(axes)) == 0,
            {.rule = Rule::segments, .extent = Extent::seq_len, .value = e_.seq_len, .axes = axes});
    require(copies == 0, {.rule = Rule::rows_of_context, .extent = Extent::seq_len, .axes = copies});
  }

  void one_order() {
    const auto shared = std::ranges::find_if(s_.layers, [&](const Layer& l) { return s_.wide(l.context.axes) != 0; });
    layer_ = 0;
    for (size_t l = 0; shared != s_.layers.end() && l < s_.layers.size(); layer_ += s_.layers[l++].count) {
      const Layer& other = s_.layers[l];
      const AxisSet differ =
          s_.wide((other.attention.rows ^ shared->attention.rows) | (other.context.axes ^ shared->context.axes));
      require(differ == 0, {.rule = Rule::one_order, .extent = Extent::seq_len, .axes = differ});
    }
  }

  /// The rules for the linears of experts, which are sharded as up and down.
  void experts(const Layer& layer) {
    const LinearSharding &up = layer.at(Site::up), &down = layer.at(Site::down);
    const auto whole_rows = [&](AxisSet axes, const char* what, const char* site) {
      require(s_.wide(axes) == 0,
              {.rule = Rule::whole_rows, .extent = Extent::d_expert, .axes = axes, .what = what, .site = site});
    };
    whole_rows(up.contraction, "the contraction of ", "up");
    whole_rows(down.cols, "columns of ", "down");
    const AxisSet differ = s_.wide((up.rows ^ layer.mlp.rows) | (up.rows ^ down.rows) | (up.cols ^ layer.mlp.cols) |
                                   (up.cols ^ down.contraction));
    require(differ == 0, {.rule = Rule::one_split, .extent = Extent::d_expert, .axes = differ});
    for (const Site site : {Site::up, Site::down})
      require(layer.at(site).schedule == Transfer::at_once,
              {.rule = Rule::no_ring, .extent = Extent::d_expert, .site = kSiteNames[static_cast<size_t>(site)]});
    divides(Extent::n_expert, e_.n_expert, layer.experts, "hold whole experts");
    const AxisSet rows = layer.stream.rows & layer.mlp.rows & up.rows & down.rows & ~(s_.data() | s_.stage_axis()),
                  copies = s_.wide(layer.experts & ~rows);
    require(copies == 0,
            {.rule = Rule::rows_of_experts, .extent = Extent::n_expert, .axes = layer.experts, .others = copies});
  }

  /// SUMMA requires a square mesh of ranks that stores blocks of all three matrices. If the contraction is split, the
  /// input is stationary and the result is communicated.
  void ring(const Layer& layer, const LinearSharding& linear, Site site, const char* name) {
    const AxisSet rows = s_.wide(linear.rows), cols = s_.wide(linear.cols), contraction = s_.wide(linear.contraction);
    const AxisSet other = cols | contraction;
    const auto on_square = [&](Spread at) { return s_.wide(at.rows) == rows && s_.wide(at.cols) == other; };
    const bool one_side = contraction == 0 || (cols == 0 && !reads_residual(site));
    require(one_side && s_.ranks(rows) == s_.ranks(other) && s_.wide(linear.flat) == rows && on_square(layer.stream) &&
                on_square(layer.inside(site)),
            {.rule = Rule::ring, .axes = linear.rows, .others = linear.cols | linear.contraction, .site = name});
    width(site == Site::down && contraction == 0, rows, "split rows of the weight blocks");
  }

  /// True if the axes of `cols`, each of which may be split in two, form exactly n_kv_head groups of ranks.
  bool shares_evenly(AxisSet cols) const {
    const int64_t kv = e_.n_kv_head;
    int64_t groups = 1;
    for (size_t a = 0; a < s_.axes.size() && groups < kv; ++a) {
      const int64_t size = (cols >> a & 1) != 0 ? s_.axes[a].size : 1;
      if (groups * size > kv) return kv % groups == 0 && size % (kv / groups) == 0;
      groups *= size;
    }
    return groups == kv;
  }

  void table() {
    const VocabSpread& table = s_.table;
    const Spread first = s_.layers.empty() ? s_.head : s_.layers.front().stream, last = s_.head;
    if (e_.vocab_multiple > 0) divides(Extent::vocab_multiple, e_.vocab_multiple, table.vocab, "split the vocabulary");
    width(false, table.width, "split columns of the table");
    require((s_.wide(table.flat) & ~last.rows) == 0,
            {.rule = Rule::flat_table, .axes = table.flat, .others = last.rows});
    const AxisSet cut = table.vocab | table.width;
    const AxisSet at_first = s_.wide((first.rows | table.flat) & ~cut), at_last = s_.wide(last.rows & ~cut);
    token_rows(at_first, "split rows at the embedding's table");
    require(!e_.tied || at_first == at_last,
            {.rule = Rule::one_table, .extent = Extent::tied, .axes = at_first, .others = at_last});
    // A chunk of the head contains equally many rows from every rank along the axes that split both the table and rows,
    // so these axes must be the inner ones.
    const AxisSet shared = s_.wide(last.rows & cut);
    require(shared == 0 || (shared & (~shared + 1)) > at_last,
            {.rule = Rule::nested_table, .axes = shared, .others = at_last});
  }

  const ModelSharding& s_;
  const Extents& e_;
  const Found& found_;
  int64_t layer_ = -1;
  bool dense_ = true, moe_ = false;  // the layers that are checked include ones with a dense MLP, with experts
  bool done_ = false;
};

}  // namespace

std::string Violation::text(const ModelSharding& s) const {
  const auto [name, unit] = kWords[static_cast<size_t>(extent)];
  return fmt::format(fmt::runtime(kTexts[static_cast<size_t>(rule)]),
                     fmt::arg("where", layer < 0 || s.layers.size() < 2 ? "" : format("blocks.{}: ", layer)),
                     fmt::arg("name", name), fmt::arg("value", value), fmt::arg("unit", unit),
                     fmt::arg("ranks", s.ranks(axes)), fmt::arg("segments", 2 * s.ranks(axes)),
                     fmt::arg("axes", s.name_of(axes)), fmt::arg("other_ranks", s.ranks(others)),
                     fmt::arg("others", s.name_of(others)), fmt::arg("what", what), fmt::arg("site", site));
}

std::string Violation::remedy(const ModelSharding& s) const {
  const bool segments = rule == Rule::segments;
  if (rule == Rule::shares_heads) {
    const int64_t n = s.ranks(axes);
    int64_t less = std::min(value - 1, n), more = value + 1;  // divisors of the ranks, which divide the query heads
    while (n % less != 0) --less;
    while (more < n && n % more != 0) ++more;
    return format("n_kv_head = {}{} fits", less, more > n ? "" : format(" or {}", more));
  }
  if ((rule != Rule::divides && !segments) || extent == Extent::query_width || extent == Extent::key_width ||
      extent == Extent::token_rows)
    return {};
  const int64_t n = s.ranks(axes) * (segments ? 2 : 1), below = std::max(n, value / n * n), above = (value / n + 1) * n;
  const char* const name = kWords[static_cast<size_t>(extent)].name;
  return below < value ? format("{} = {} or {} fits", name, below, above) : format("{} = {} fits", name, below);
}

std::optional<Violation> first_violation(const ModelSharding& sharding, const Extents& extents) {
  std::optional<Violation> first;
  Check(sharding, extents, [&](const Violation& violation) {
    first = violation;
    return true;
  }).run();
  return first;
}

std::vector<Violation> violations(const ModelSharding& sharding, const Extents& extents) {
  std::vector<Violation> all;
  Check(sharding, extents, [&](const Violation& violation) {
    const bool known = std::ranges::any_of(all, [&](const Violation& other) {
      return other.rule == violation.rule && other.extent == violation.extent && other.axes == violation.axes;
    });
    if (!known) all.push_back(violation);
    return false;
  }).run();
  return all;
}

}  // namespace trainer::sharding
