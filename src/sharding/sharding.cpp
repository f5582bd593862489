#include "sharding/sharding.h"

#include <utility>

#include "base/error.h"
#include "base/join.h"

namespace trainer::sharding {
namespace {

/// Calls map(set) on every set of axes in `s`; map may change the set.
template <typename Map>
void for_each_set(ModelSharding& s, const Map& map) {
  const auto spread = [&](Spread& at) {
    map(at.rows);
    map(at.cols);
  };
  for (Layer& layer : s.layers) {
    for (Spread* at : {&layer.stream, &layer.attention, &layer.mlp}) spread(*at);
    for (auto& [site, linear] : layer.linears)
      for (AxisSet* set : {&linear.rows, &linear.cols, &linear.contraction, &linear.flat}) map(*set);
    map(layer.experts);
    map(layer.context.axes);
  }
  spread(s.head);
  for (AxisSet* set : {&s.table.vocab, &s.table.width, &s.table.flat}) map(*set);
  for (Group& group : s.groups) map(group.axes);
}

constexpr AxisSet below(size_t axis) { return (AxisSet{1} << axis) - 1; }

/// Removes the axes of one rank, except the one that counts replicas.
void drop_single_axes(ModelSharding& s) {
  for (size_t a = s.axes.size(); a-- > 0;) {
    if (s.axes[a].size > 1 || a == s.replica_axis()) continue;
    for_each_set(s, [&](AxisSet& set) { set = (set & below(a)) | (set & ~below(a + 1)) >> 1; });
    s.axes.erase(s.axes.begin() + static_cast<std::ptrdiff_t>(a));
  }
  std::erase_if(s.groups, [](const Group& group) { return group.axes == 0; });
}

/// Splits an axis into an outer axis of `outer` ranks and an inner axis of the remaining factor.
void split_axis(ModelSharding& s, size_t axis, int64_t outer) {
  const Axis whole = s.axes[axis];
  for_each_set(s, [&](AxisSet& set) {  // bits above the axis move up by one; the bit of the axis itself is duplicated
    const AxisSet own = set >> axis & 1;
    set = (set & below(axis)) | own << axis | own << (axis + 1) | (set & ~below(axis + 1)) << 1;
  });
  s.axes[axis] = {whole.name + "0", outer};
  s.axes.insert(s.axes.begin() + static_cast<std::ptrdiff_t>(axis) + 1, {whole.name + "1", whole.size / outer});
  s.groups.push_back({whole.name, AxisSet{3} << axis});
}

}  // namespace

const LinearSharding& Layer::at(Site site) const {
  static const LinearSharding whole;
  const auto found = linears.find(site);
  return found == linears.end() ? whole : found->second;
}

int64_t ModelSharding::ranks(AxisSet set) const {
  int64_t product = 1;
  for (size_t a = 0; a < axes.size(); ++a)
    if ((set >> a & 1) != 0) product *= axes[a].size;
  return product;
}

AxisSet ModelSharding::find(std::string_view name) const {
  for (const Group& group : groups)
    if (group.name == name) return group.axes;
  for (size_t a = 0; a < axes.size(); ++a)
    if (axes[a].name == name) return AxisSet{1} << a;
  return 0;
}

std::string ModelSharding::name_of(AxisSet set) const {
  for (const Group& group : groups)
    if (group.axes == set) return group.name;
  std::string all;
  for (size_t a = 0; a < axes.size(); ++a)
    if ((set >> a & 1) != 0) all += (all.empty() ? "" : "+") + axes[a].name;
  return all.empty() ? "no axis" : all;
}

AxisSet ModelSharding::wide(AxisSet set) const {
  for (size_t a = 0; a < axes.size(); ++a)
    if (axes[a].size == 1) set &= ~(AxisSet{1} << a);
  return set;
}

const Layer& ModelSharding::layer(int64_t index) const {
  for (const Layer& layer : layers) {
    if (index < layer.count) return layer;
    index -= layer.count;
  }
  TRAINER_CHECK(false, "layer {} is past the last one", index);
}

bool ModelSharding::gathers_weights() const {
  for (const Layer& layer : layers)
    for (const auto& [site, linear] : layer.linears)
      if (linear.schedule == Transfer::at_once && wide(linear.flat) != 0) return true;
  return false;
}

ModelSharding on_mesh(ModelSharding s, int64_t n_kv_head) {
  drop_single_axes(s);  // a mesh has few axes
  for (size_t l = 0; l < s.layers.size() && n_kv_head > 0; ++l) {
    AxisSet kv = 0;  // axes along which ranks hold different heads
    for (size_t a = 0; a < s.axes.size() && s.ranks(kv) < n_kv_head; ++a) {
      if ((s.layers[l].attention.cols >> a & 1) == 0) continue;
      const int64_t size = s.axes[a].size, outer = n_kv_head / s.ranks(kv);
      if (size > outer && n_kv_head % s.ranks(kv) == 0 && size % outer == 0) split_axis(s, a, outer);
      kv |= AxisSet{1} << a;
    }
    const AxisSet cols = s.layers[l].attention.cols;
    if (kv != 0 && s.ranks(kv) == n_kv_head && s.ranks(cols) > n_kv_head && s.find("kv") == 0)
      s.groups.insert(s.groups.end(), {{"kv", kv}, {"rep", cols & ~kv}});
  }
  return s;
}

std::string text_of(const Stages& stages) {
  if (stages.count == 1) return {};
  return format("{} stages x {} {} {}", stages.count, stages.chunks,
                kPipelineScheduleNames[static_cast<size_t>(stages.schedule)], fmt::join(stages.layers, ","));
}

ModelSharding add_stages(ModelSharding s, Stages stages) {
  TRAINER_CHECK(s.stages.count == 1, "stages of {} stages", s.stages.count);
  s.stages = std::move(stages);
  if (s.stage_axis() == 0) return s;
  for_each_set(s, [](AxisSet& set) { set <<= 1; });
  s.axes.insert(s.axes.begin(), {"stage", s.stages.count});
  return s;
}

ModelSharding inside_stage(ModelSharding s) {
  if (s.stage_axis() != 0) {
    for_each_set(s, [](AxisSet& set) { set >>= 1; });
    s.axes.erase(s.axes.begin());
  }
  s.stages = {};
  return s;
}

ModelSharding anonymous(const ModelSharding& sharding) {
  ModelSharding s = sharding;
  std::erase_if(s.groups, [](const Group& group) { return group.name != "data"; });
  drop_single_axes(s);
  const size_t replicas = s.replica_axis();
  for (size_t a = 0; a < s.axes.size(); ++a)
    if (a != replicas) s.axes[a].name.clear();
  for (size_t l = s.layers.size(); l-- > 1;) {  // merges equal neighbours into one entry
    Layer before = s.layers[l - 1];
    before.count = s.layers[l].count;
    if (before != s.layers[l]) continue;
    s.layers[l - 1].count += before.count;
    s.layers.erase(s.layers.begin() + static_cast<std::ptrdiff_t>(l));
  }
  return s;
}

}  // namespace trainer::sharding
