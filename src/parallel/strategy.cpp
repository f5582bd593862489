#include "parallel/strategy.h"

#include <algorithm>
#include <bit>

#include "parallel/attention.h"
#include "parallel/experts.h"
#include "parallel/grid_linear.h"
#include "parallel/summa.h"

namespace trainer::parallel {

Strategy::Strategy(mesh::Mesh& mesh, ParamStore& store, sharding::ModelSharding sharding, bool overlap)
    : store_(store),
      sharding_(std::move(sharding)),
      // A single rank of a stage has the mesh only because the loads of its experts are those of all replicas. It adds
      // no partial sums: without wide sums, its types, and so its bits, are those of a single rank without replicas.
      ranks_(sharding_.ranks_of_stage() * sharding_.ranks(sharding_.data()) == 1
                 ? Ranks()
                 : Ranks(mesh, overlap && sharding_.overlap, sharding_.ranks_of_stage() > 1 && sharding_.wide_sums)) {}

Strategy::Strategy(ParamStore& store, int64_t n_layer) : store_(store), sharding_{.layers = {{.count = n_layer}}} {}

Spread Strategy::stream(int64_t layer) const {
  for (const sharding::Layer& cut : sharding_.layers) {
    if (layer < cut.count) return cut.stream;
    layer -= cut.count;
  }
  return sharding_.head;
}

Spread Strategy::boundary(int64_t layer, int64_t rows) const {
  const sharding::ModelSharding& s = sharding_;
  Spread spread = stream(layer);
  // Ranks are numbered row-major: an axis inside all others that split rows divides each rank's rows.
  const AxisSet inside = ~(std::bit_ceil(spread.rows + 1) - 1);
  const AxisSet copies = s.wide(s.all() & inside & ~(s.stage_axis() | s.data() | spread.rows | spread.cols));
  if (rows % s.ranks(spread.rows | copies) == 0) spread.rows |= copies;
  return spread;
}

AxisSet Strategy::loss_axes() const {
  const VocabSpread& table = sharding_.table;
  return (sharding_.head.rows | table.flat) & ~(table.vocab | table.width);
}

LinearSpec LayerSpec::linear(Site site, config::Role role) const {
  std::vector<LinearSpec> all = linears_of(model, layer);
  const auto found = std::ranges::find_if(all, [&](const LinearSpec& l) { return l.site == site && l.role == role; });
  TRAINER_CHECK(found != all.end(), "layer {} has no linear at site {} with role {}", layer, static_cast<int>(site),
                static_cast<int>(role));
  for (LinearPart& part : found->parts) part.name = name() + part.name;
  return std::move(*found);
}

std::unique_ptr<Linear> Strategy::linear(int layer, int group, const LinearSpec& spec) {
  const sharding::Layer& cut = sharding_.layer(layer);
  const sharding::LinearSharding& linear = cut.at(spec.site);
  if (linear.schedule == sharding::Transfer::ring && ranks_.size(linear.rows) > 1)
    return std::make_unique<SummaLinear>(ranks_, store_, group, spec, linear);
  const Spread inside = cut.inside(spec.site);
  const bool reads = reads_residual(spec.site);
  return std::make_unique<GridLinear>(
      ranks_, store_, group, spec,
      GridLinear::Place{.grid = linear, .from = reads ? cut.stream : inside, .to = reads ? inside : cut.stream});
}

std::optional<ops::DropoutSite> StreamDropout::of(const Batch& batch) const {
  if (!batch.dropout || p <= 0) return {};
  const Tile tile = ranks.tile(stream, batch.rows(), width);
  const int64_t first_row = batch.first_sample * batch.seq_len + (batch.order ? 0 : tile.first_row);
  return ops::DropoutSite{p, key, batch.step, first_row, tile.first_col, width, rows_of(batch.order, tile)};
}

std::unique_ptr<Attention> Strategy::attention(const LayerSpec& spec) {
  return std::make_unique<Attention>(*this, spec, attention_core(ranks_, sharding_.layer(spec.layer), spec));
}

std::unique_ptr<Mlp> Strategy::mlp(const LayerSpec& spec) {
  if (is_moe_layer(spec.model, spec.layer)) return std::make_unique<Experts>(ranks_, store_, spec, sharding_);
  return std::make_unique<DenseMlp>(*this, spec);
}

std::unique_ptr<Norm> Strategy::norm(int layer, int group, const NormSpec& spec) {
  return std::make_unique<Norm>(ranks_, store_, group, spec, stream(layer));
}

// Ranks that share a key head, like ranks with different rows or heads, hold different partial sums of the gradient.
std::unique_ptr<Norm> Strategy::head_norm(const LayerSpec& spec, const std::string& name, int64_t heads) {
  const Spread attention = sharding_.layer(spec.layer).attention;
  NormSpec norm{name, head_size(spec.model), /*center=*/false, /*bias=*/false, spec.model.norm_eps};
  norm.gain_offset = spec.model.family.gain_offset;
  AxisSet cols = 0;
  if (query_key_norm(spec.model) == config::QkNorm::full) {
    norm.width *= heads;
    const LinearPart part{name, norm.width, heads};
    cols = Parts(ranks_, {part}).cut_axes(part, {.spread = attention, .by_heads = true});
  } else {
    norm.groups = std::max<int64_t>(1, heads / ranks_.size(attention.cols));
  }
  return std::make_unique<Norm>(ranks_, store_, spec.group, norm,
                                Spread{.rows = attention.rows | (attention.cols & ~cols), .cols = cols});
}

std::unique_ptr<Embedding> Strategy::embedding(int group, const EmbeddingSpec& spec) {
  table_.emplace(ranks_, store_, group, kTableName, spec, sharding_.table, stream(0));
  return std::make_unique<Embedding>(*table_, group, spec);
}

std::unique_ptr<Head> Strategy::head(int n_layer, int group, const EmbeddingSpec& spec, bool tied) {
  const Spread features = stream(n_layer);
  if (!tied || !table_)
    return std::make_unique<Head>(
        Table(ranks_, store_, group, tied ? kTableName : "head.weight", spec, sharding_.table, features, /*copy=*/tied),
        false, spec.logit_softcap);
  return std::make_unique<Head>(table_->with_stream(features), true, spec.logit_softcap);
}

mesh::MeshShape mesh_shape(const sharding::ModelSharding& sharding) {
  std::vector<mesh::MeshAxis> axes;
  for (const sharding::Axis& axis : sharding.axes) axes.push_back({axis.name, static_cast<int>(axis.size)});
  std::vector<std::pair<std::string, AxisSet>> groups;
  for (const sharding::Group& group : sharding.groups) groups.emplace_back(group.name, group.axes);
  return mesh::MeshShape(std::move(axes), std::move(groups));
}

}  // namespace trainer::parallel
