#include <algorithm>

#include "parallel/tagged.h"

namespace trainer::parallel {
namespace {

using config::LayoutRule;
using Keys = std::vector<const char*>;

/// Rules collects the rules of one table of tags.
class Rules {
 public:
  Rules(const mesh::MeshShape& shape, const TagTable& table, const config::Config& config)
      : shape_(shape), table_(table), config_(config), m_(config.model) {}

  std::vector<LayoutRule> all() {
    rules_.push_back({static_cast<int64_t>(table_.layers.size()) == m_.n_layer,
                      {"model.n_layer"},
                      format("tags of {} layers for n_layer = {}", table_.layers.size(), m_.n_layer)});
    for (size_t l = 0; l < table_.layers.size(); ++l) layer(format("blocks.{}: ", l), table_.layers[l]);
    stream("the head: ", table_.last);
    vocabulary();
    return std::move(rules_);
  }

 private:
  int64_t ranks(AxisSet axes) const { return shape_.group_size(axes); }

  /// Adds a rule like "d_ff = 72 does not divide over 5 ranks along x+y, which cut rows of down; d_ff = 70 or 75 fits".
  void divides(const std::string& where, const std::string& what, int64_t extent, AxisSet axes, const std::string& by,
               const Keys& keys) {
    const int64_t n = ranks(axes), below = std::max(n, extent / n * n), above = (extent / n + 1) * n;
    const std::string fits = below < extent ? format("{} or {} fits", below, above) : format("{} fits", below);
    rules_.push_back({extent % n == 0, keys,
                      format("{}{} = {} does not divide over {} ranks along {}, which {}; {}", where, what, extent, n,
                             name(axes), by, fits)});
  }
  void token_rows(const std::string& where, AxisSet axes, const std::string& by) {
    divides(where, "micro_batch x seq_len", config_.train.micro_batch * m_.seq_len, axes, by,
            {"train.micro_batch", "model.seq_len"});
  }
  void stream(const std::string& where, const std::string& tags) {
    const Spread spread = spread_of(shape_, tags);
    token_rows(where, spread.rows, "cut the residual stream's rows");
    divides(where, "d_model", m_.d_model, spread.cols, "cut the residual stream's columns", {"model.d_model"});
  }

  void layer(const std::string& where, const LayerTags& tags) {
    stream(where, tags.stream);
    const Spread attention = spread_of(shape_, tags.attention), hidden = spread_of(shape_, tags.hidden);
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
    const Grid qkv = grid_of(shape_, tags.qkv);
    linear(where, "qkv", qkv, {"d_model", h}, {"d_model", h});
    if (qkv.cols != attention.cols)  // otherwise ranks divide the heads or share them
      divides(where, "width of all keys", kv_width, qkv.cols, "cut columns of qkv", {"model.n_kv_head"});
    linear(where, "out", grid_of(shape_, tags.out), {"d_model", h}, {"d_model", h});
    linear(where, "up", grid_of(shape_, tags.up), {"d_model", h}, {"d_ff", m_.d_ff});
    linear(where, "down", grid_of(shape_, tags.down), {"d_ff", m_.d_ff}, {"d_model", h});
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

  bool groups(AxisSet axes, int64_t wanted) const {
    int64_t product = 1;
    for (int a = 0; a < shape_.axes() && product < wanted; ++a) product *= ranks(axes & AxisSet{1} << a);
    return product == wanted;
  }

  void vocabulary() {
    const VocabSpread table = vocab_of(shape_, table_.vocab);
    const Spread first = spread_of(shape_, table_.layers.empty() ? table_.last : table_.layers.front().stream),
                 last = spread_of(shape_, table_.last);
    if (m_.vocab_multiple > 0)
      divides("", "vocab_multiple", m_.vocab_multiple, table.vocab, "cut the vocabulary", {"model.vocab_multiple"});
    divides("", "d_model", m_.d_model, table.hidden, "cut columns of the table", {"model.d_model"});
    rules_.push_back(
        {(wide(table.flat) & ~last.rows) == 0,
         {"parallel.strategy"},
         format("the table is in flat pieces along {}: at the head its ranks do not all have rows of their "
                "own, which are cut along {}",
                name(table.flat), name(last.rows))});
    const AxisSet cut = table.vocab | table.hidden;
    const AxisSet at_first = wide((first.rows | table.flat) & ~cut), at_last = wide(last.rows & ~cut);
    token_rows("the embedding: ", at_first, "cut rows at its table");
    rules_.push_back(
        {!m_.tie_embeddings.value_or(false) || at_first == at_last,
         {"model.tie_embeddings"},
         format("one table for embedding and head, beside rows cut along {} at the one and along {} at the "
                "other; tie_embeddings = false has two",
                name(at_first), name(at_last))});
    // A chunk of the head holds as many rows of every rank along axes that cut both. So these must be the inner axes.
    const AxisSet shared = wide(last.rows & cut);
    rules_.push_back({shared == 0 || (shared & (~shared + 1)) > at_last,
                      {"parallel.strategy"},
                      format("the table and rows at the head are cut along {}, outside of {}, which cut rows alone",
                             name(shared), name(at_last))});
  }

  /// Returns the axes without those of one rank.
  AxisSet wide(AxisSet axes) const {
    AxisSet found = 0;
    for (int a = 0; a < shape_.axes(); ++a)
      if (shape_.size(a) > 1) found |= axes & AxisSet{1} << a;
    return found;
  }
  std::string name(AxisSet axes) const { return axes == 0 ? "no axis" : shape_.name_of(axes); }

  const mesh::MeshShape& shape_;
  const TagTable& table_;
  const config::Config& config_;
  const config::Model& m_;
  std::vector<LayoutRule> rules_;
};

}  // namespace

std::vector<LayoutRule> tag_rules(const mesh::MeshShape& shape, const TagTable& table, const config::Config& config) {
  return Rules(shape, table, config).all();
}

}  // namespace trainer::parallel
