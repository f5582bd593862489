#include "parallel/tagged.h"

namespace trainer::parallel {
namespace {

/// Returns the axes whose letter is one of these; an outermost axis "data" has none.
AxisSet axes_of(const mesh::MeshShape& shape, std::string_view tags, std::string_view letters,
                std::string_view allowed) {
  const int data = shape.axes() > 0 && shape.name(0) == "data" ? 1 : 0;
  TRAINER_CHECK(static_cast<int>(tags.size()) + data == shape.axes() && tags.find_first_not_of(allowed) == tags.npos,
                "tags \"{}\": one of \"{}\" for each axis of {} but data", tags, allowed, shape.name_of(shape.all()));
  return config::axes_with(tags, letters) << data;
}

const std::string& tags_of(const LayerTags& tags, Site site) {
  switch (site) {
    case Site::qkv:
      return tags.qkv;
    case Site::out:
      return tags.out;
    case Site::up:
      return tags.up;
    default:
      return tags.down;
  }
}

}  // namespace

Spread spread_of(const mesh::MeshShape& shape, std::string_view tags) {
  constexpr std::string_view kAllowed = config::kSpreadLetters;
  return {axes_of(shape, tags, "r", kAllowed), axes_of(shape, tags, "c", kAllowed)};
}

Grid grid_of(const mesh::MeshShape& shape, std::string_view tags) {
  constexpr std::string_view kAllowed = config::kLinearLetters;
  return {.rows = axes_of(shape, tags, "rf", kAllowed),
          .cols = axes_of(shape, tags, "c", kAllowed),
          .contraction = axes_of(shape, tags, "k", kAllowed),
          .flat = axes_of(shape, tags, "f", kAllowed)};
}

VocabSpread vocab_of(const mesh::MeshShape& shape, std::string_view tags) {
  constexpr std::string_view kAllowed = config::kTableLetters;
  return {axes_of(shape, tags, "v", kAllowed), axes_of(shape, tags, "h", kAllowed),
          axes_of(shape, tags, "f", kAllowed)};
}

std::vector<config::LayoutRule> tag_rules(const mesh::MeshShape& shape, const TagTable& table,
                                          const config::Config& config) {
  std::vector<config::TagAxis> axes;
  for (int a = 0; a < shape.axes(); ++a)
    if (shape.name(a) != "data") axes.push_back({shape.name(a), shape.size(a)});
  return config::tag_rules(axes, table, config);
}

mesh::MeshShape Tagged::mesh_shape(int world, const config::Parallel& parallel) {
  std::vector<mesh::MeshAxis> axes = {{"data", world}};
  for (const config::TagAxis& axis : config::tag_axes(parallel)) {
    axes.push_back({axis.name, static_cast<int>(axis.size)});
    axes.front().size /= axes.back().size;
  }
  const mesh::MeshShape shape(axes);
  TRAINER_CHECK(shape.world_size() == world, "{} ranks for {}", world, shape.name_of(shape.all()));
  return shape;
}

Tagged::Tagged(mesh::Mesh& mesh, ParamStore& store, const TagTable& table, const config::Config& config)
    : Strategy(store, Ranks(mesh, config.debug.overlap)),
      sums_(table.sums),
      cache_layers_(config.parallel.cache_layers) {
  const mesh::MeshShape& shape = mesh.shape();
  for (const config::LayoutRule& rule : tag_rules(shape, table, config))
    if (!rule.holds) throw Error(Code::config, rule.text);
  for (const LayerTags& tags : table.layers) {
    Layer layer{spread_of(shape, tags.stream), spread_of(shape, tags.attention), spread_of(shape, tags.hidden), {}};
    for (const Site site : {Site::qkv, Site::out, Site::up, Site::down})
      layer.linears[static_cast<size_t>(site)] = grid_of(shape, tags_of(tags, site));
    layers_.push_back(layer);
  }
  last_ = spread_of(shape, table.last);
  vocab_ = vocab_of(shape, table.vocab);
}

Spread Tagged::stream(int layer) const {
  const auto l = static_cast<size_t>(layer);
  return l < layers_.size() ? layers_[l].stream : last_;
}

std::unique_ptr<Linear> Tagged::linear(int layer, int group, const LinearSpec& spec) {
  const Layer& at = layers_[static_cast<size_t>(layer)];
  const Spread inside = spec.site == Site::qkv || spec.site == Site::out ? at.attention : at.hidden;
  const GridLinear::Place place{.grid = at.linears[static_cast<size_t>(spec.site)],
                                .from = reads_residual(spec.site) ? at.stream : inside,
                                .to = reads_residual(spec.site) ? inside : at.stream,
                                .sums = sums_,
                                .keep = layer < cache_layers_};
  return std::make_unique<GridLinear>(ranks_, store_, group, spec, place);
}

}  // namespace trainer::parallel
