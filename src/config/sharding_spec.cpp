#include "config/sharding_spec.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "config/strategy_rows.h"

namespace trainer::config {
namespace {

using sharding::AxisSet;
using sharding::Layer;
using sharding::LinearSharding;
using sharding::ModelSharding;
using sharding::Site;
using sharding::Spread;
using sharding::Transfer;
using sharding::VocabSpread;

constexpr const char* kRing = "ring";

/// The letters allowed in a spec, each with the set to which it adds its axis.
using Letters = std::vector<std::pair<char, AxisSet*>>;
Letters letters_of(Spread& s) { return {{'r', &s.rows}, {'c', &s.cols}}; }
Letters letters_of(VocabSpread& t) { return {{'f', &t.flat}, {'v', &t.vocab}, {'h', &t.width}}; }
Letters letters_of(LinearSharding& l) {
  return {{'f', &l.flat}, {'r', &l.rows}, {'c', &l.cols}, {'k', &l.contraction}};
}
std::vector<std::pair<std::string LayerSpec::*, Letters>> words_of(Layer& layer) {
  Letters attention = letters_of(layer.attention);
  attention.insert(attention.begin(), {'s', &layer.context.axes});
  return {{&LayerSpec::stream, letters_of(layer.stream)},       {&LayerSpec::attention, std::move(attention)},
          {&LayerSpec::hidden, letters_of(layer.mlp)},          {&LayerSpec::qkv, letters_of(layer.at(Site::qkv))},
          {&LayerSpec::out, letters_of(layer.at(Site::out))},   {&LayerSpec::up, letters_of(layer.at(Site::up))},
          {&LayerSpec::down, letters_of(layer.at(Site::down))}, {&LayerSpec::experts, {{'e', &layer.experts}}}};
}

/// Parses one spec: adds each mesh axis to the set that its letter selects. "data", which has no letter, comes before
/// them (parse_tables()).
void read(std::string_view word, const Letters& letters) {
  for (size_t a = 0; a < word.size(); ++a)
    for (const auto& [letter, set] : letters)
      if (word[a] == letter) *set |= AxisSet{2} << a;
}

/// Returns one letter for each axis except those of `data`: the letter of the first set that contains the axis, else
/// "-".
std::string word_of(const ModelSharding& s, const Letters& letters) {
  std::string word;
  for (size_t a = 0; a < s.axes.size(); ++a) {
    if ((s.data() >> a & 1) != 0) continue;
    const auto found = std::ranges::find_if(letters, [&](const auto& set) { return (*set.second >> a & 1) != 0; });
    word += found == letters.end() ? '-' : found->first;
  }
  return word;
}

}  // namespace

ModelSharding parse_tables(const Config& config) {
  const Parallel& p = config.parallel;
  ModelSharding s{.axes = {{"data", std::max<int64_t>(1, p.data)}}, .layers = {}};
  for (const int64_t extent : p.axes)
    s.axes.push_back({std::string(1, static_cast<char>('a' + s.axes.size() - 1)), extent});
  int64_t left = config.model.n_layer;
  for (const LayerSpec& spec : p.layer) {
    Layer layer;
    for (const auto& [word, letters] : words_of(layer)) read(spec.*word, letters);
    for (auto& [site, linear] : layer.linears) {
      linear.rows |= linear.flat;
      if (spec.schedule == kRing) linear.schedule = Transfer::ring;
    }
    layer.attention.rows |= layer.context.axes;
    layer.context.schedule = schedule_of(p.context_kv);
    layer.count = spec.layers > 0 ? spec.layers : std::max<int64_t>(left, 0);
    left -= layer.count;
    if (layer.count > 0) s.layers.push_back(layer);
  }
  const std::string last = p.head.empty() && !p.layer.empty() ? p.layer.back().stream : p.head;
  read(last, letters_of(s.head));
  const Letters by_head = {{'-', &s.table.vocab}, {'c', &s.table.width}, {'r', &s.table.flat}};
  p.table.empty() ? read(last, by_head) : read(p.table, letters_of(s.table));
  return s;
}

void set_tables(Config& config, const ModelSharding& sharding) {
  Parallel& p = config.parallel;
  p.data = std::max<int64_t>(1, p.data) * sharding.depth();
  config.train.micro_batch /= sharding.depth();
  ModelSharding s = anonymous(inside_stage(sharding));
  if (s.ranks_of_replica() == s.depth()) s.axes.push_back({"", 1});  // at least one letter
  p.strategy = StrategyName::autoddl;
  p.context = 1;  // the specs have letter s instead
  p.axes.clear();
  for (size_t a = 0; a < s.axes.size(); ++a)
    if ((s.data() >> a & 1) == 0) p.axes.push_back(s.axes[a].size);
  p.layer.clear();
  for (Layer& layer : s.layers) {
    LayerSpec spec;
    for (const auto& [word, letters] : words_of(layer)) spec.*word = word_of(s, letters);
    if (layer.experts == 0) spec.experts.clear();
    if (layer.context.axes != 0)
      p.context_kv = layer.context.schedule == Transfer::ring ? Panels::ring : Panels::gather;
    if (layer.at(Site::qkv).schedule == Transfer::ring) spec.schedule = kRing;
    if (s.layers.size() > 1) spec.layers = layer.count;
    p.layer.push_back(std::move(spec));
  }
  p.head = word_of(s, letters_of(s.head));
  p.table = word_of(s, letters_of(s.table));
}

void check_spec(const Config& config, std::vector<BrokenRule>& broken) {
  const Parallel& p = config.parallel;
  if (p.layer.empty())
    broken.push_back({{"parallel.layer", "parallel.strategy"},
                      "missing sharding specs: add [[parallel.layer]], or write them with `trainer plan --emit`"});
  const auto letters = [&](const char* key, const std::string& what, const std::string& word, const char* allowed) {
    if (word.size() == p.axes.size() && word.find_first_not_of(allowed) == std::string::npos) return;
    broken.push_back({{key, "parallel.axes"},
                      format("{} = \"{}\": expected {} of the letters \"{}\", one for each entry of axes", what, word,
                             p.axes.size(), allowed)});
  };
  int64_t layers = 0;
  bool all = false;
  for (size_t i = 0; i < p.layer.size(); ++i) {
    const LayerSpec& spec = p.layer[i];
    for (const SpecMember& member : kSpecMembers)
      if (member.letters != nullptr && (member.letters != kExpertLetters || !spec.experts.empty()))
        letters("parallel.layer", format("table {}: {}", i + 1, member.name), spec.*member.member, member.letters);
    if (!spec.schedule.empty() && spec.schedule != kRing && spec.schedule != "at_once")
      broken.push_back({{"parallel.layer"},
                        format("table {}: schedule = \"{}\": expected \"at_once\" or \"ring\"", i + 1, spec.schedule)});
    layers += spec.layers;
    all |= spec.layers == 0;
  }
  if (!p.head.empty()) letters("parallel.head", "head", p.head, kSpreadLetters);
  if (!p.table.empty()) letters("parallel.table", "table", p.table, kTableLetters);
  if (broken.empty() && (layers > config.model.n_layer || (!all && layers != config.model.n_layer)))
    broken.push_back({{"parallel.layer", "model.n_layer"},
                      format("tables for {} layers, but n_layer = {}; a table without `layers` applies to all "
                             "remaining layers",
                             layers, config.model.n_layer)});
}

}  // namespace trainer::config
