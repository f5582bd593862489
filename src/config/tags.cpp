#include "config/tags.h"

#include <algorithm>
#include <utility>

namespace trainer::config {
namespace {

using sharding::AxisSet;
using sharding::GemmSchedule;
using sharding::Layer;
using sharding::LinearSharding;
using sharding::ModelSharding;
using sharding::Site;
using sharding::Spread;
using sharding::VocabSpread;

constexpr const char* kRing = "ring";

/// Returns the axes whose letter is one of these. Axis 0 is "data", which has no letter.
AxisSet axes_of(std::string_view word, std::string_view letters) {
  AxisSet found = 0;
  for (size_t a = 0; a < word.size(); ++a)
    if (letters.find(word[a]) != std::string_view::npos) found |= AxisSet{2} << a;
  return found;
}
Spread spread_of(std::string_view word) { return {axes_of(word, "r"), axes_of(word, "c")}; }

/// Returns a letter for each axis but those of `data`: that of the first set which has it, else "-".
std::string word_of(const ModelSharding& s, std::initializer_list<std::pair<AxisSet, char>> sets) {
  std::string word;
  for (size_t a = 0; a < s.axes.size(); ++a) {
    if ((s.data() >> a & 1) != 0) continue;
    const auto found = std::ranges::find_if(sets, [&](const auto& set) { return (set.first >> a & 1) != 0; });
    word += found == sets.end() ? '-' : found->second;
  }
  return word;
}
std::string word_of(const ModelSharding& s, Spread spread) {
  return word_of(s, {{spread.rows, 'r'}, {spread.cols, 'c'}});
}
std::string word_of(const ModelSharding& s, const LinearSharding& linear) {
  return word_of(s, {{linear.flat, 'f'}, {linear.rows, 'r'}, {linear.cols, 'c'}, {linear.contraction, 'k'}});
}

constexpr std::pair<Site, std::string LayerTags::*> kLinears[] = {{Site::qkv, &LayerTags::qkv},
                                                                  {Site::out, &LayerTags::out},
                                                                  {Site::up, &LayerTags::up},
                                                                  {Site::down, &LayerTags::down}};

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

ModelSharding parse_tables(const Config& config) {
  const Parallel& p = config.parallel;
  ModelSharding s{.axes = {{"data", std::max<int64_t>(1, p.data)}}, .layers = {}};
  for (const int64_t extent : p.axes)
    s.axes.push_back({std::string(1, static_cast<char>('a' + s.axes.size() - 1)), extent});
  int64_t left = config.model.n_layer;
  for (const LayerTags& tags : p.layer) {
    Layer layer{spread_of(tags.stream), spread_of(tags.attention), spread_of(tags.hidden), {}, 1};
    for (const auto& [site, member] : kLinears) {
      const std::string& word = tags.*member;
      layer.at(site) = {.rows = axes_of(word, "rf"),
                        .cols = axes_of(word, "c"),
                        .contraction = axes_of(word, "k"),
                        .flat = axes_of(word, "f"),
                        .schedule = tags.schedule == kRing ? GemmSchedule::ring : GemmSchedule::at_once};
    }
    layer.count = tags.layers > 0 ? tags.layers : std::max<int64_t>(left, 0);
    left -= layer.count;
    if (layer.count > 0) s.layers.push_back(layer);
  }
  const std::string last = p.head.empty() && !p.layer.empty() ? p.layer.back().stream : p.head;
  s.head = spread_of(last);
  s.table = {axes_of(p.table, "v"), axes_of(p.table, "h"), axes_of(p.table, "f")};
  if (p.table.empty()) s.table = {axes_of(last, "-"), s.head.cols, s.head.rows};
  return s;
}

void set_tables(Config& config, const ModelSharding& sharding) {
  Parallel& p = config.parallel;
  p.data = std::max<int64_t>(1, p.data) * sharding.depth();
  config.train.micro_batch /= sharding.depth();
  ModelSharding s = anonymous(sharding);
  if (s.ranks_of_replica() == s.depth()) s.axes.push_back({"", 1});  // one letter at least
  p.strategy = "autoddl";
  p.axes.clear();
  for (size_t a = 0; a < s.axes.size(); ++a)
    if ((s.data() >> a & 1) == 0) p.axes.push_back(s.axes[a].size);
  p.layer.clear();
  for (const Layer& layer : s.layers) {
    LayerTags tags{.stream = word_of(s, layer.stream),
                   .attention = word_of(s, layer.attention),
                   .hidden = word_of(s, layer.hidden)};
    for (const auto& [site, member] : kLinears) tags.*member = word_of(s, layer.at(site));
    if (layer.at(Site::qkv).schedule == GemmSchedule::ring) tags.schedule = kRing;
    if (s.layers.size() > 1) tags.layers = layer.count;
    p.layer.push_back(std::move(tags));
  }
  p.head = word_of(s, s.head);
  p.table = word_of(s, {{s.table.flat, 'f'}, {s.table.vocab, 'v'}, {s.table.hidden, 'h'}});
}

}  // namespace trainer::config
