#include "parallel/strategy.h"

#include <algorithm>

#include "config/layout_rules.h"
#include "parallel/axonn4d.h"
#include "parallel/megatron1d.h"
#include "parallel/optimus2d.h"
#include "parallel/serial.h"
#include "parallel/tagged.h"

namespace trainer::parallel {

std::unique_ptr<Norm> Strategy::norm(int layer, int group, const NormSpec& spec) {
  return std::make_unique<Norm>(ranks_, store_, group, spec, stream(layer));
}

std::unique_ptr<Embedding> Strategy::embedding(int group, const EmbeddingSpec& spec) {
  table_.emplace(ranks_, store_, group, "wte", spec, vocab(), stream(0));
  return std::make_unique<Embedding>(*table_, group, spec);
}

std::unique_ptr<Head> Strategy::head(int n_layer, int group, const EmbeddingSpec& spec, bool tied) {
  const Spread features = stream(n_layer);
  if (!tied) return std::make_unique<Head>(Table(ranks_, store_, group, "head.weight", spec, vocab(), features), false);
  TRAINER_CHECK(table_.has_value(), "a tied head before its embedding");
  return std::make_unique<Head>(table_->with_stream(features), true);
}

AttentionTile Strategy::attention_tile(int layer, const Batch& batch, int64_t heads, int64_t kv_heads) const {
  const Spread spread = attention(layer);
  const AxisSet cut = batch.cut ? spread.rows : AxisSet{0};
  const int64_t groups = ranks_.size(cut), sharers = ranks_.size(spread.cols);
  TRAINER_CHECK(batch.sequences % groups == 0 && heads % sharers == 0, "{} sequences x {} heads over {} x {} ranks",
                batch.sequences, heads, groups, sharers);
  const int64_t sequences = batch.sequences / groups;
  return {.first_sequence = ranks_.index(cut) * sequences,
          .sequences = sequences,
          .first_head = ranks_.index(spread.cols) * heads / sharers,
          .heads = heads / sharers,
          .kv_heads = std::max<int64_t>(1, kv_heads / sharers)};
}

mesh::MeshShape make_mesh_shape(const config::Config& config, int world) {
  const config::Parallel& parallel = config.parallel;
  config::require_layout(config);
  if (parallel.strategy == "optimus-2d") return Optimus2D::mesh_shape(world, parallel, config.model.n_kv_head);
  if (parallel.strategy == "axonn-4d") return Axonn4D::mesh_shape(world, parallel, config.model.n_kv_head);
  if (parallel.strategy == "autoddl") return Tagged::mesh_shape(world, parallel);
  TRAINER_CHECK(parallel.strategy == "megatron-1d", "parallel.strategy = \"{}\"", parallel.strategy);
  return Megatron1D::mesh_shape(world, static_cast<int>(parallel.tensor), config.model.n_kv_head);
}

std::vector<config::Parallel> replica_layouts(const config::Config& config, int world) {
  config::Config trial = config;
  trial.parallel.strategy = "megatron-1d";
  const bool megatron = config.parallel.strategy == trial.parallel.strategy;
  const int64_t own = config::ranks_of_replica(config), own_tensor = megatron ? config.parallel.tensor : 1;
  std::vector<config::Parallel> layouts;
  const auto add = [&](int64_t tensor) {
    trial.parallel.tensor = tensor;
    trial.parallel.data = world / tensor;
    trial.parallel.sequence_parallel = config.parallel.sequence_parallel;
    if (!config::layout_fits(trial)) trial.parallel.sequence_parallel = false;
    if (world % tensor == 0 && config::layout_fits(trial)) layouts.push_back(trial.parallel);
  };
  add(1);
  if (own_tensor > 1) add(own_tensor);
  if (!megatron && own > 1 && world % own == 0 && config::layout_fits(config)) {
    layouts.push_back(config.parallel);
    layouts.back().data = world / own;
  }
  for (int64_t tensor = 2; tensor <= world; ++tensor)
    if (world % own_tensor != 0 || tensor > own_tensor) add(tensor);
  return layouts;
}

std::vector<config::Parallel> generation_layouts(const config::Config& config, int world) {
  config::Config one_by_one = config;
  one_by_one.parallel.sequence_parallel = false;  // generation has one row at a time, which cannot be split
  std::vector<config::Parallel> layouts = replica_layouts(one_by_one, world);
  std::erase_if(layouts, [](const config::Parallel& layout) { return layout.strategy != "megatron-1d"; });
  return {std::ranges::max(layouts, {}, &config::Parallel::tensor)};
}

std::unique_ptr<Strategy> make_strategy(const config::Config& config, mesh::Mesh& mesh, ParamStore& store) {
  // With one rank per replica every strategy is the same program.
  const mesh::MeshShape& shape = mesh.shape();
  if (shape.group_size(shape.all() & ~shape.set("data")) == 1) return std::make_unique<Serial>(store);
  if (config.parallel.strategy == "optimus-2d") return std::make_unique<Optimus2D>(mesh, store, config);
  if (config.parallel.strategy == "axonn-4d") return std::make_unique<Axonn4D>(mesh, store, config);
  if (config.parallel.strategy == "autoddl")
    return std::make_unique<Tagged>(mesh, store, config::tag_table(config), config);
  return std::make_unique<Megatron1D>(mesh, store, config.parallel.sequence_parallel, config.debug.overlap);
}

}  // namespace trainer::parallel
