#include "config/layout_choices.h"

#include <algorithm>

#include "config/keys.h"
#include "config/layouts.h"
#include "config/stages.h"

namespace trainer::config {

std::vector<Parallel> replica_layouts(const Config& trained, int world) {
  Config config = trained;
  config.parallel.stages = config.parallel.chunks = 1;
  config.parallel.pipeline_schedule = {};
  config.parallel.stage_layers.clear();
  Config trial = config;
  trial.parallel.strategy = StrategyName::megatron_1d;
  trial.parallel.experts = trial.parallel.context = 1;
  const bool own_strategy = config.parallel.strategy == trial.parallel.strategy && config.parallel.experts == 1 &&
                            config.parallel.context == 1;
  const int64_t own = ranks_of_replica(config), own_tensor = own_strategy ? config.parallel.tensor : 1;
  std::vector<Parallel> layouts;
  const auto add = [&](int64_t tensor) {
    trial.parallel.tensor = tensor;
    trial.parallel.data = world / tensor;
    trial.parallel.sequence_parallel = config.parallel.sequence_parallel;
    if (!layout_fits(trial)) trial.parallel.sequence_parallel = false;
    if (world % tensor == 0 && layout_fits(trial)) layouts.push_back(trial.parallel);
  };
  add(1);
  if (own_tensor > 1) add(own_tensor);
  if (!own_strategy && own > 1 && world % own == 0 && layout_fits(config)) {
    layouts.push_back(config.parallel);
    layouts.back().data = world / own;
  }
  for (int64_t tensor = 2; tensor <= world; ++tensor)
    if (world % own_tensor != 0 || tensor > own_tensor) add(tensor);
  return layouts;
}

std::vector<Parallel> generation_layouts(const Config& config, int world) {
  Config one_by_one = config;
  one_by_one.parallel.sequence_parallel = false;  // generation computes one row at a time, which cannot be split
  std::vector<Parallel> layouts = replica_layouts(one_by_one, world);
  const auto others = std::ranges::stable_partition(layouts, [](const Parallel& layout) {
    return layout.strategy == StrategyName::megatron_1d && layout.experts * layout.context == 1;
  });
  std::vector<Parallel> chosen = {*std::ranges::max_element(layouts.begin(), others.begin(), {}, &Parallel::tensor)};
  chosen.insert(chosen.end(), others.begin(), others.end());
  return chosen;
}

std::vector<Panels> values_by_memory(const Config& config, const MemoryChoice& choice) {
  if (!find_key("parallel", choice.name)->belongs(config.parallel.strategy) ||
      config.parallel.*choice.key != Panels::automatic)
    return {};
  if (choice.key == &Parallel::panels && config.model.n_expert > 0) return {Panels::gather};  // any number of rows
  if (choice.key == &Parallel::context_kv) {
    const sharding::ModelSharding s = sharding_of(config);
    const sharding::Layer& layer = s.layers.front();
    if (s.wide(layer.context.axes) == 0) return {};
    // With one key head, nothing would overlap with its gather.
    if (extents_of(config).n_kv_head <= s.ranks(layer.attention.cols)) return {Panels::ring};
  }
  return {Panels::gather, Panels::ring};
}

std::vector<Parallel> choices_by_memory(const Config& config) {
  std::vector<Parallel> all = {config.parallel};
  for (const MemoryChoice& choice : kMemoryChoices) {
    const std::vector<Panels> values = values_by_memory(config, choice);
    if (values.empty()) continue;
    std::vector<Parallel> chosen;
    for (const Parallel& parallel : all)
      for (const Panels value : values) (chosen.emplace_back(parallel)).*choice.key = value;
    all = std::move(chosen);
  }
  return all;
}

bool chooses_vocab_axes(const Config& config) {
  const Parallel& p = config.parallel;
  return find_key("parallel", "vocab_axes")->belongs(p.strategy) && p.vocab_axes == VocabAxes::automatic &&
         layout_fits(config) && p.grid[1] > 1;
}

void choose_vocab_axes(Config& config, int64_t vocab, DType compute) {
  if (!chooses_vocab_axes(config)) return;
  Parallel& p = config.parallel;
  // In units of (y - 1) / y bytes per token row: an all-reduce of the logits, or all-gathers of the head's input and of
  // the embedding's output gradient and reduce-scatters of the embedding's output and of the head's input gradient,
  // which is in the accumulator type. The all-reduces over x that follow are the same.
  const int64_t element = size_of(compute), sum = size_of(accumulator_of(compute));
  const int64_t logits = 2 * sum * (vocab / p.grid[0]), features = (3 * element + sum) * config.model.d_model;
  p.vocab_axes = VocabAxes::xy;
  if (features >= logits || !layout_fits(config)) p.vocab_axes = VocabAxes::x;
}

namespace {

/// Returns the keys of a strategy's layouts on which rounding depends.
std::vector<const Key*> rounding_keys(StrategyName strategy) {
  std::vector<const Key*> all = {find_key("train", "micro_batch"), find_key("parallel", "strategy"),
                                 find_key("parallel", "data")};
  for (const Key& key : keys())
    if (key.belongs(strategy) && key.name != "cache_layers" && !key.name.starts_with("overlap.")) all.push_back(&key);
  return all;
}

}  // namespace

std::optional<Config> with_layout_of(const Config& trained, Config config, int64_t ranks) {
  std::vector<const Key*> kept = rounding_keys(trained.parallel.strategy);
  // Chunks, layers and schedule of other stages would not fit.
  bool same_stages = true;
  for (const char* name : kKeysOfStages) {
    const Key* key = find_key("parallel", name);
    same_stages &= !is_given(config, key->path().c_str()) || key->get(config) == key->get(trained);
    if (same_stages) kept.push_back(key);
  }
  for (const Key* key : kept) {
    const bool given = is_given(config, key->path().c_str()) && key->get(config) != Value("auto");
    if (given || key->name == "rs_dtype") continue;  // the planner does not choose rs_dtype
    key->set(config, key->get(trained));
    config.origins[key->path()] = {};
  }
  std::string broken;
  if (enumerate_layouts(config, ranks, broken).empty()) return std::nullopt;
  return config;
}

std::vector<std::string> layout_changes(const Config& trained, const Config& config) {
  std::vector<std::string> changes;
  for (const Key* key : rounding_keys(config.parallel.strategy))
    if (key->get(trained) != key->get(config) && key->get(trained) != Value("auto")) changes.push_back(key->path());
  const bool staged = trained.parallel.stages > 1, stages = config.parallel.stages > 1;
  if (staged != stages && config.model.tie_embeddings.value_or(true)) changes.emplace_back("parallel.stages");
  return changes;
}

}  // namespace trainer::config
