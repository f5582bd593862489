#include "config/layouts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "base/error.h"
#include "base/join.h"
#include "config/context.h"
#include "config/layout_keys.h"
#include "config/stages.h"
#include "config/text.h"

namespace trainer::config {
namespace {

using sharding::ModelSharding;

const Key& extents_key(const Config& config) {
  const std::string_view path = strategy_of(config).extents_key;
  return *find_key("parallel", path.substr(path.find('.') + 1));
}

/// Returns the extents of a replica's axes, also if the key is a single number, as for "tensor". 0, not set, counts
/// as 1.
std::vector<int64_t> extents(const Config& config) {
  const Value value = extents_key(config).get(config);
  if (const auto* one = std::get_if<int64_t>(&value)) return {std::max<int64_t>(1, *one)};
  return std::get<IntegerList>(value);
}

int64_t factor(const Config& config, const char* name) {  // one of NamedStrategy::factors
  return std::get<int64_t>(find_key("parallel", name)->get(config));
}

/// Returns the strategy's keys that differ in `other`, with the values in `other`: "mesh = [2, 2]".
std::vector<std::string> differing(const Config& config, const Config& other) {
  std::vector<std::string> all;
  for_own_keys(config, [&](const Key& key) {
    const Value value = key.get(other);
    if (value != key.get(config)) all.push_back(key.name + " = " + to_toml(value));
  });
  return all;
}

/// Returns the sum of |log2 a/b| over the extents, plus 0.001 for every key that differs.
double distance(const Config& config, const Config& other) {
  std::vector<int64_t> a = extents(config), b = extents(other);
  a.resize(std::max(a.size(), b.size()), 1);
  b.resize(a.size(), 1);
  double sum = 1e-3 * static_cast<double>(differing(config, other).size());
  for (size_t i = 0; i < a.size(); ++i)
    sum += std::abs(std::log2(static_cast<double>(a[i]) / static_cast<double>(b[i])));
  return sum;
}

/// Returns parallel.context_heads, and if it is set the smaller numbers of ranks that may exchange heads instead.
std::vector<int64_t> heads_near(const Parallel& parallel) {
  std::vector<int64_t> all = {parallel.context_heads};
  for (int64_t heads = parallel.context_heads - 1; heads > 0; --heads)
    if (parallel.context % heads == 0) all.push_back(heads);
  return all;
}

/// Returns the settings that fit and are nearest to those of `config`: settings for the same number of ranks, else for
/// the nearest smaller and the nearest larger number (at most twice the number). For each number of ranks the setting
/// with the smallest distance() is chosen.
std::vector<Config> nearest_settings(const Config& config) {
  const int64_t ranks = ranks_of_stage(config);
  std::vector<Config> all;
  for (const int64_t step : {-1, 1})
    for (int64_t count = step < 0 ? ranks : ranks + 1; count >= 1 && count <= 2 * ranks; count += step) {
      std::optional<Config> best;
      double least = std::numeric_limits<double>::infinity();
      Config trial = config;
      strategy_of(config).each(config, count, [&](const Parallel& parallel) {
        trial.parallel = parallel;
        for (const int64_t heads : heads_near(parallel)) {
          trial.parallel.context_heads = heads;
          if (!layout_fits(trial)) continue;
          const double apart = distance(config, trial);
          if (apart < least) best = trial;
          least = std::min(least, apart);
        }
      });
      if (!best) continue;
      all.push_back(*best);
      if (count == ranks) return all;
      break;
    }
  return all;
}

/// Returns "; tensor = 4 or 6 fits"; empty if nothing near fits.
std::string nearest_text(const Config& config) {
  std::string text;
  const std::string key = extents_key(config).name + " = ";
  for (const Config& other : nearest_settings(config)) {
    const std::string setting = format("{}", fmt::join(differing(config, other), " with "));
    text += text.empty() ? "; " + setting : " or " + (setting.starts_with(key) ? setting.substr(key.size()) : setting);
  }
  return text.empty() ? text : text + " fits";
}

const char* key_of(sharding::Extent extent) {
  constexpr const char* kKeys[] = {
      "model.n_layer",        "model.n_head",   "model.n_head",         "model.n_kv_head",   "model.n_kv_head",
      "model.d_model",        "model.d_ff",     "model.vocab_multiple", "train.micro_batch", "model.seq_len",
      "model.tie_embeddings", "model.d_expert", "model.d_shared",       "model.n_expert",    "model.seq_len"};
  return kKeys[static_cast<size_t>(extent)];
}

/// Returns the keys that a violation concerns, the likely cause first.
std::vector<const char*> keys_of(const Config& config, const sharding::Violation& violation) {
  using Rule = sharding::Violation::Rule;
  std::vector<const char*> keys = {replica_key(config), key_of(violation.extent)};
  if (violation.rule == Rule::segments && !has_spec(config)) keys.front() = "parallel.context";
  if (violation.rule == Rule::shares_heads && is_given(config, "parallel.context_heads"))
    keys.front() = "parallel.context_heads";
  if (violation.extent == sharding::Extent::token_rows) keys.push_back("train.micro_batch");
  if (!has_spec(config) || violation.rule == Rule::divides || violation.rule == Rule::shares_heads) return keys;
  keys.insert(keys.begin(), "parallel.layer");  // the letters conflict with each other, on any number of ranks
  if (violation.layer < 0) keys.insert(keys.begin(), {"parallel.table", "parallel.head"});
  return keys;
}

/// Returns a remedy: the nearest settings of the strategy that fit (`nearest`), and values of the extent that fit
/// the configured ones. Heads and features must also fit each other, so they are suggested only if nothing else fits.
std::string remedy_of(const sharding::Violation& violation, const ModelSharding& s, const std::string& nearest) {
  using sharding::Extent;
  const std::string own = violation.remedy(s);
  const bool independent = violation.extent == Extent::d_ff || violation.extent == Extent::d_expert ||
                           violation.extent == Extent::n_expert || violation.extent == Extent::micro_batch ||
                           violation.extent == Extent::vocab_multiple || violation.extent == Extent::seq_len;
  if (own.empty() || (!nearest.empty() && !independent)) return nearest;
  if (violation.rule == sharding::Violation::Rule::segments)
    for (int64_t ranks = s.ranks(violation.axes) / 2; ranks > 1; --ranks)
      if (s.ranks(violation.axes) % ranks == 0 && violation.value % (2 * ranks) == 0)
        return "; " + own + format(", or {} such ranks", ranks);
  return nearest.empty() ? "; " + own : nearest + ", or " + own;
}

/// Returns the text of a violation. Layers of autoddl are named by their tables, if there are several.
std::string text_of(const Config& config, const ModelSharding& s, sharding::Violation violation) {
  const std::vector<LayerSpec>& tables = config.parallel.layer;
  if (!has_spec(config) || tables.size() < 2) return violation.text(s);
  const int64_t layer = std::exchange(violation.layer, -1);
  int64_t number = 0;
  for (int64_t end = 0; end <= layer; ++number) {
    const int64_t layers = tables[static_cast<size_t>(number)].layers;
    end = layers > 0 ? end + layers : config.model.n_layer;
  }
  return (number > 0 ? format("table {}: ", number) : "") + violation.text(s);
}

}  // namespace

int64_t ranks_of_replica(const Config& config) { return config.parallel.stages * ranks_of_stage(config); }

int64_t ranks_of_stage(const Config& config) {
  int64_t product = 1;
  for (const int64_t extent : extents(config)) product *= extent;
  for (const char* name : strategy_of(config).factors) product *= factor(config, name);
  return product;
}

int64_t expert_ranks(const Config& config) {
  const ModelSharding s = sharding_of(config);
  int64_t most = 1;
  for (const sharding::Layer& layer : s.layers) most = std::max(most, s.ranks(layer.experts));
  return most;
}

std::vector<BrokenRule> malformed_keys(const Config& config) {
  std::vector<BrokenRule> broken;
  const NamedStrategy& strategy = strategy_of(config);
  if (strategy.check_keys != nullptr) strategy.check_keys(config, broken);
  check_stages(config, broken);
  return broken;
}

const char* replica_key(const Config& config) { return strategy_of(config).extents_key; }

std::string replica_text(const Config& config) {
  const Key& key = extents_key(config);
  std::string of_stage = key.name + " = " + to_toml(key.get(config));
  for (const char* name : strategy_of(config).factors | std::views::reverse)
    if (const int64_t ranks = factor(config, name); ranks > 1) of_stage = format("{} = {} x {}", name, ranks, of_stage);
  return config.parallel.stages == 1 ? of_stage : format("stages = {} x {}", config.parallel.stages, of_stage);
}

std::vector<BrokenRule> broken_rules(const Config& config) {
  if (is_automatic(config)) return {};
  std::vector<BrokenRule> broken = malformed_keys(config);
  if (!broken.empty()) return broken;
  const ModelSharding s = sharding_of(config);
  std::optional<std::string> fits;
  for (const sharding::Violation& violation : violations(s, extents_of(config))) {
    if (!fits) fits = nearest_text(config);
    broken.push_back({keys_of(config, violation), text_of(config, s, violation) + remedy_of(violation, s, *fits)});
  }
  return broken;
}

bool layout_fits(const Config& config) {
  return malformed_keys(config).empty() && !first_violation(sharding_of(config), extents_of(config));
}

ModelSharding sharding_on(const Config& config, int64_t world) {
  if (!layout_fits(config)) throw Error(Code::config, broken_rules(config).front().text);
  ModelSharding s = sharding_of(config);
  const int64_t replica = s.ranks_of_replica();
  TRAINER_CHECK(world % replica == 0, "{} ranks, {} of a replica", world, replica);
  s.axes[s.replica_axis()].size = world / replica;
  constexpr size_t kMostAxes = 8;  // the limit of a mesh
  s = on_mesh(std::move(s), extents_of(config).n_kv_head);
  if (s.axes.size() > kMostAxes)
    throw Error(
        Code::config,
        format("{}: {}: layers share key/value heads along different axes, so that the mesh has {} axes, but at "
               "most {} are supported; split attention in the same way in all layers",
               config.path, replica_key(config), s.axes.size(), kMostAxes));
  return s;
}

bool is_automatic(const Config& config) { return config.parallel.strategy == StrategyName::automatic; }
bool has_spec(const Config& config) { return config.parallel.strategy == StrategyName::autoddl; }
bool needs_spec(const Config& config) { return has_spec(config) && config.parallel.layer.empty(); }
bool is_given(const Config& config, const char* key) { return config.origins.contains(key); }

void drop_other_strategies(Config& config) {
  for (const Key& key : keys()) {
    if (key.strategies.empty() || key.belongs(config.parallel.strategy)) continue;
    key.set(config, key.initial);
    config.origins.erase(key.path());
  }
}

std::string layout_text(const Config& config) {
  const Parallel& p = config.parallel;
  std::string text = format("{} {}", extents_key(config).name, fmt::join(extents(config), " x "));
  if (p.stages > 1)
    text = format("{} stages ({}{}), ", p.stages,
                  sharding::kPipelineScheduleNames[static_cast<size_t>(p.pipeline_schedule)],
                  p.chunks == 1 ? "" : format(", {} chunks", p.chunks)) +
           text;
  for_own_keys(config, [&](const Key& key) {
    const Value value = key.get(config);
    if (&key == &extents_key(config) || value == key.initial || key.type == Type::tables || key.type == Type::string ||
        key.name.starts_with("context_"))
      return;
    std::string shown = to_toml(value);
    std::erase(shown, '"');
    text += format(", {} {}", key.name, shown) + (key.name == "context" ? context_text(config) : "");
  });
  text += format(", data {}", p.data) + (p.zero_stage == 1 ? ", zero 1" : "");
  if (config.offload.optimizer == OffloadOptimizer::none) return text;
  return text + ", state on the host" +
         (config.offload.resident > 0 ? format(" ({} subgroups on the device)", config.offload.resident) : "");
}

}  // namespace trainer::config
