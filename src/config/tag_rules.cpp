#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "base/format.h"
#include "config/tags.h"

namespace trainer::config {
namespace {

using Axes = uint32_t;
using Keys = std::vector<const char*>;

/// What the letters of a spread, of a linear and of the table say, as sets of axes.
struct Spread {
  Axes rows, cols;
};
Spread spread_of(std::string_view tags) { return {axes_with(tags, "r"), axes_with(tags, "c")}; }
struct Grid {
  Axes rows, cols, contraction;
};
Grid grid_of(std::string_view tags) { return {axes_with(tags, "rf"), axes_with(tags, "c"), axes_with(tags, "k")}; }
struct VocabSpread {
  Axes vocab, hidden, flat;
};
VocabSpread vocab_of(std::string_view tags) {
  return {axes_with(tags, "v"), axes_with(tags, "h"), axes_with(tags, "f")};
}

/// Rules collects the rules of one table of tags.
class Rules {
 public:
  Rules(const std::vector<TagAxis>& axes, const TagTable& table, const Config& config)
      : axes_(axes), table_(table), config_(config), m_(config.model) {}

  std::vector<LayoutRule> all() {
    rules_.push_back({static_cast<int64_t>(table_.layers.size()) == m_.n_layer,
                      {"model.n_layer"},
                      format("tags of {} layers for n_layer = {}", table_.layers.size(), m_.n_layer)});
    for (size_t l = 0; l < table_.layers.size(); ++l)
      if (l == 0 || table_.layers[l] != table_.layers[l - 1]) layer(format("blocks.{}: ", l), table_.layers[l]);
    stream("the head: ", table_.last);
    vocabulary();
    return std::move(rules_);
  }

 private:
  int64_t ranks(Axes axes) const {
    int64_t product = 1;
    for (size_t a = 0; a < axes_.size(); ++a)
      if ((axes >> a & 1) != 0) product *= axes_[a].size;
    return product;
  }

  /// Adds a rule like "d_ff = 72 does not divide over 5 ranks along x+y, which cut rows of down; d_ff = 70 or 75 fits".
  void divides(const std::string& where, const std::string& what, int64_t extent, Axes axes, const std::string& by,
               const Keys& keys) {
    const int64_t n = ranks(axes), below = std::max(n, extent / n * n), above = (extent / n + 1) * n;
    const std::string fits = below < extent ? format("{} or {} fits", below, above) : format("{} fits", below);
    rules_.push_back({extent % n == 0, keys,
                      format("{}{} = {} does not divide over {} ranks along {}, which {}; {}", where, what, extent, n,
                             name(axes), by, fits)});
  }
  void token_rows(const std::string& where, Axes axes, const std::string& by) {
    divides(where, "micro_batch x seq_len", config_.train.micro_batch * m_.seq_len, axes, by,
            {"train.micro_batch", "model.seq_len"});
  }
  void stream(const std::string& where, const std::string& tags) {
    const Spread spread = spread_of(tags);
    token_rows(where, spread.rows, "cut the residual stream's rows");
    divides(where, "d_model", m_.d_model, spread.cols, "cut the residual stream's columns", {"model.d_model"});
  }

  void layer(const std::string& where, const LayerTags& tags) {
    stream(where, tags.stream);
    const Spread attention = spread_of(tags.attention), hidden = spread_of(tags.hidden);
    divides(where, "micro_batch", config_.train.micro_batch, attention.rows, "share out whole sequences",
            {"train.micro_batch"});
    divides(where, "n_head", m_.n_head, attention.cols, "share out whole heads", {"model.n_head"});
    const int64_t kv = m_.n_kv_head, sharers = ranks(attention.cols);
    rules_.push_back({kv % sharers == 0 || groups(attention.cols, kv),
                      {"model.n_kv_head"},
                      format("{}n_kv_head = {} heads neither divide over the {} ranks along {} nor are they as many as "
                             "the groups that outer axes of these make",
                             where, kv, sharers, name(attention.cols))});
    token_rows(where, hidden.rows, "cut rows between up and down");
    divides(where, "d_ff", m_.d_ff, hidden.cols, "cut columns between up and down", {"model.d_ff"});

    const int64_t h = m_.d_model, kv_width = m_.n_head == 0 ? 0 : h / m_.n_head * kv;
    const Grid qkv = grid_of(tags.qkv);
    linear(where, "qkv", qkv, {"d_model", h}, {"d_model", h});
    if (qkv.cols != attention.cols)  // otherwise ranks divide the heads or share them
      divides(where, "width of all keys", kv_width, qkv.cols, "cut columns of qkv", {"model.n_kv_head"});
    linear(where, "out", grid_of(tags.out), {"d_model", h}, {"d_model", h});
    linear(where, "up", grid_of(tags.up), {"d_model", h}, {"d_ff", m_.d_ff});
    linear(where, "down", grid_of(tags.down), {"d_ff", m_.d_ff}, {"d_model", h});
  }

  struct Extent {
    const char* name;
    int64_t value;
  };
  void linear(const std::string& where, const char* site, const Grid& grid, Extent in, Extent out) {
    token_rows(where, grid.rows, format("cut rows of {}", site));
    divides(where, in.name, in.value, grid.contraction, format("cut the contraction of {}", site), {"model.d_model"});
    divides(where, out.name, out.value, grid.cols, format("cut columns of {}", site), {"model.d_model"});
  }

  bool groups(Axes axes, int64_t wanted) const {
    int64_t product = 1;
    for (size_t a = 0; a < axes_.size() && product < wanted; ++a) product *= ranks(axes & Axes{1} << a);
    return product == wanted;
  }

  void vocabulary() {
    const VocabSpread table = vocab_of(table_.vocab);
    const Spread first = spread_of(table_.layers.empty() ? table_.last : table_.layers.front().stream),
                 last = spread_of(table_.last);
    if (m_.vocab_multiple > 0)
      divides("", "vocab_multiple", m_.vocab_multiple, table.vocab, "cut the vocabulary", {"model.vocab_multiple"});
    divides("", "d_model", m_.d_model, table.hidden, "cut columns of the table", {"model.d_model"});
    rules_.push_back(
        {(wide(table.flat) & ~last.rows) == 0,
         {"parallel.strategy"},
         format("the table is in flat pieces along {}: at the head its ranks do not all have rows of their "
                "own, which are cut along {}",
                name(table.flat), name(last.rows))});
    const Axes cut = table.vocab | table.hidden;
    const Axes at_first = wide((first.rows | table.flat) & ~cut), at_last = wide(last.rows & ~cut);
    token_rows("the embedding: ", at_first, "cut rows at its table");
    rules_.push_back(
        {!m_.tie_embeddings.value_or(false) || at_first == at_last,
         {"model.tie_embeddings"},
         format("one table for embedding and head, beside rows cut along {} at the one and along {} at the "
                "other; tie_embeddings = false has two",
                name(at_first), name(at_last))});
    // A chunk of the head holds as many rows of every rank along axes that cut both. So these must be the inner axes.
    const Axes shared = wide(last.rows & cut);
    rules_.push_back({shared == 0 || (shared & (~shared + 1)) > at_last,
                      {"parallel.strategy"},
                      format("the table and rows at the head are cut along {}, outside of {}, which cut rows alone",
                             name(shared), name(at_last))});
  }

  /// Returns the axes without those of one rank.
  Axes wide(Axes axes) const {
    Axes found = 0;
    for (size_t a = 0; a < axes_.size(); ++a)
      if (axes_[a].size > 1) found |= axes & Axes{1} << a;
    return found;
  }
  std::string name(Axes axes) const {
    std::string all;
    for (size_t a = 0; a < axes_.size(); ++a)
      if ((axes >> a & 1) != 0) all += (all.empty() ? "" : "+") + axes_[a].name;
    return all.empty() ? "no axis" : all;
  }

  const std::vector<TagAxis>& axes_;
  const TagTable& table_;
  const Config& config_;
  const Model& m_;
  std::vector<LayoutRule> rules_;
};

}  // namespace

const TagMember* find_tag_member(std::string_view name) {
  const auto found = std::ranges::find_if(kTagMembers, [&](const TagMember& member) { return name == member.name; });
  return found == kTagMembers.end() ? nullptr : &*found;
}

std::vector<std::string> tag_member_names() {
  std::vector<std::string> names = {"layers"};
  for (const TagMember& member : kTagMembers) names.emplace_back(member.name);
  return names;
}

TagTable tag_table(const Config& config) {
  const Parallel& parallel = config.parallel;
  TagTable table;
  for (const LayerTags& tags : parallel.layer) {
    const int64_t left = config.model.n_layer - static_cast<int64_t>(table.layers.size());
    table.layers.insert(table.layers.end(),
                        static_cast<size_t>(tags.layers > 0 ? tags.layers : std::max<int64_t>(left, 0)), tags);
  }
  table.last = parallel.head;
  if (table.last.empty() && !table.layers.empty()) table.last = table.layers.back().stream;
  table.vocab = parallel.table;
  if (table.vocab.empty())
    for (const char tag : table.last) table.vocab += tag == 'r' ? 'f' : tag == 'c' ? 'h' : 'v';
  return table;
}

std::vector<TagAxis> tag_axes(const Parallel& parallel) {
  std::vector<TagAxis> axes;
  for (const int64_t extent : parallel.axes)
    axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), extent});
  return axes;
}

TagLayout tag_layout(const Config& config) {
  const Parallel& p = config.parallel;
  if (p.strategy == "autoddl") {
    const TagTable table = tag_table(config);
    return {tag_axes(p), table.layers.front(), table.last, table.vocab};
  }
  const auto tags = [](const char* stream, const char* attention, const char* hidden, const char* qkv, const char* out,
                       const char* up,
                       const char* down) { return LayerTags{stream, attention, hidden, qkv, out, up, down}; };
  TagLayout layout;
  if (p.strategy == "optimus-2d") {
    layout.axes = {{"row", p.mesh.at(0)}, {"col", p.mesh.at(1)}};
    layout.layer = tags("rc", "rc", "rc", "fc", "fc", "fc", p.stationary == "auto" ? "fk" : "fc");
    layout.table = "fv";
  } else if (p.strategy == "axonn-4d") {
    const LayerTags zxy = tags("r-c", "rc-", "rc-", "fck", "fkc", "fck", "fkc");
    constexpr std::string_view kZxy = "zxy";
    const std::string table = "fvh";
    for (size_t i = 3; i-- > 0;) {
      const char name = p.order.at(i);
      const size_t from = kZxy.find(name);
      layout.axes.push_back({std::string(1, name), p.grid.at(static_cast<size_t>(name - 'x'))});
      for (const TagMember& member : kTagMembers) layout.layer.*member.member += (zxy.*member.member)[from];
      layout.table += table[from];
    }
  } else {
    layout.axes = {{"tensor", p.tensor}};
    const char* const stream = p.sequence_parallel ? "r" : "-";
    layout.layer = tags(stream, "c", "c", "c", "k", "c", "k");
    layout.table = "v";
  }
  layout.last = layout.layer.stream;
  return layout;
}

void set_tag_layout(Config& config, const TagLayout& layout) {
  Parallel& p = config.parallel;
  p.strategy = "autoddl";
  p.axes.clear();
  p.layer = {LayerTags()};
  p.head.clear();
  p.table.clear();
  const int64_t ranks = std::transform_reduce(layout.axes.begin(), layout.axes.end(), int64_t{1}, std::multiplies<>(),
                                              [](const TagAxis& axis) { return axis.size; });
  for (size_t a = 0; a < layout.axes.size(); ++a) {
    if (layout.axes[a].size == 1 && (ranks > 1 || a > 0)) continue;
    p.axes.push_back(layout.axes[a].size);
    for (const TagMember& member : kTagMembers) (p.layer[0].*member.member) += (layout.layer.*member.member)[a];
    p.head += layout.last[a];
    p.table += layout.table[a];
  }
}

uint32_t axes_with(std::string_view tags, std::string_view letters) {
  uint32_t found = 0;
  for (size_t a = 0; a < tags.size(); ++a)
    if (letters.find(tags[a]) != std::string_view::npos) found |= uint32_t{1} << a;
  return found;
}

std::vector<LayoutRule> tag_rules(const std::vector<TagAxis>& axes, const TagTable& table, const Config& config) {
  return Rules(axes, table, config).all();
}

std::vector<LayoutRule> autoddl_rules(const Config& config) {
  constexpr size_t kMostAxes = 6;
  const Parallel& parallel = config.parallel;
  const size_t axes = parallel.axes.size();
  std::vector<LayoutRule> rules;
  rules.push_back({axes >= 1 && axes <= kMostAxes,
                   {"parallel.axes"},
                   format("expected one to {} extents, found {}", kMostAxes, axes)});
  rules.push_back({!parallel.layer.empty(),
                   {"parallel.layer", "parallel.strategy"},
                   "no tags: give tables [[parallel.layer]], or let `trainer plan --emit` write them"});
  const auto letters = [&](const char* key, const std::string& what, const std::string& tags, const char* allowed) {
    const bool fits = tags.size() == axes && tags.find_first_not_of(allowed) == std::string::npos;
    rules.push_back(
        {fits,
         {key, "parallel.axes"},
         format("{} = \"{}\": expected {} of the letters \"{}\", one for each of axes", what, tags, axes, allowed)});
  };
  for (size_t i = 0; i < parallel.layer.size(); ++i)
    for (const TagMember& member : kTagMembers)
      letters("parallel.layer", format("table {}: {}", i + 1, member.name), parallel.layer[i].*member.member,
              member.letters);
  if (!parallel.head.empty()) letters("parallel.head", "head", parallel.head, kSpreadLetters);
  if (!parallel.table.empty()) letters("parallel.table", "table", parallel.table, kTableLetters);
  if (!std::ranges::all_of(rules, [](const LayoutRule& rule) { return rule.holds; })) return rules;
  const TagTable table = tag_table(config);
  if (static_cast<int64_t>(table.layers.size()) != config.model.n_layer) {
    rules.push_back({false,
                     {"parallel.layer", "model.n_layer"},
                     format("tables for {} layers, the model has n_layer = {}; a table without `layers` has all that "
                            "are left",
                            table.layers.size(), config.model.n_layer)});
    return rules;
  }
  std::ranges::move(tag_rules(tag_axes(parallel), table, config), std::back_inserter(rules));
  return rules;
}

}  // namespace trainer::config
