// Searches of layouts: all that fit, the nearest numbers of devices and batches for which there are some, and variants.
#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "base/join.h"
#include "config/context.h"
#include "config/layout_keys.h"
#include "config/sharding_spec.h"
#include "config/stages.h"

namespace trainer::config {

using sharding::ModelSharding;

std::vector<Config> enumerate_layouts(const Config& config, int64_t devices, std::string& broken) {
  const bool tables = needs_spec(config);  // all layouts are returned as sharding specs
  const bool any = tables || is_automatic(config) || !is_given(config, "parallel.strategy");
  std::vector<std::pair<const Key*, Value>> given;
  for (const Key& key : keys())
    if (key.section == "parallel" && is_given(config, key.path().c_str()) && key.get(config) != Value("auto"))
      given.emplace_back(&key, key.get(config));
  std::vector<Config> found;
  std::vector<ModelSharding> seen;  // for one number of replicas and one micro-batch
  Config trial;
  const auto note = [&](const std::string& text) {
    if (broken.empty()) broken = text;
  };
  const auto add_trial = [&] {
    if (tables && !has_spec(trial)) {
      if (!layout_fits(trial)) return;
      set_tables(trial, sharding_of(trial));
      if (is_given(config, "parallel.axes") && trial.parallel.axes != config.parallel.axes) return;
    }
    if (!layout_fits(trial)) {
      if (broken.empty()) note(broken_rules(trial).front().text);
      return;
    }
    const ModelSharding same = anonymous(sharding_of(trial));
    if (std::ranges::count(seen, same) > 0) return;  // the same layout under a second name is skipped
    seen.push_back(same);
    found.push_back(trial);
  };
  // The planner compares times, instead of choosing by memory when the run starts.
  const auto add_exchanges = [&] {
    const bool open = trial.parallel.context > 1 && trial.parallel.context_kv == Panels::automatic;
    if (!open || !layout_fits(trial) || !shares_tokens(trial)) return add_trial();
    const Config same = trial;
    for (const Panels kv : {Panels::gather, Panels::ring}) {
      trial = same;
      trial.parallel.context_kv = kv;
      add_trial();
    }
  };
  const auto add_all = [&](const NamedStrategy& strategy, const Config& base) {
    trial = base;
    const int64_t ranks = devices / base.parallel.data / base.parallel.stages;
    if (has_spec(base) && !is_given(config, "parallel.layer")) {
      trial.parallel.layer.clear();
      trial.parallel.head.clear();
      trial.parallel.table.clear();
      if (!is_given(config, "parallel.axes")) trial.parallel.axes = {ranks};
      if (const int64_t own = ranks_of_stage(trial); own != ranks)
        return note(format("{} requires {} ranks per replica, but {} devices with data = {} leave {}",
                           replica_text(trial), own * base.parallel.stages, devices, base.parallel.data,
                           ranks * base.parallel.stages));
      std::vector<BrokenRule> of_stages;
      check_stages(base, of_stages);
      if (!of_stages.empty()) return note(of_stages.front().text);
      if (ranks > 1) return found.push_back(trial);
      set_tables(trial, {.layers = {{.count = config.model.n_layer}}});  // nothing to search: replicas only
      return add_trial();
    }
    if (const std::vector<BrokenRule> malformed = malformed_keys(base); !malformed.empty())
      return note(malformed.front().text);
    Config open = base;
    if (!is_given(config, "parallel.context")) open.parallel.context = 0;
    strategy.each(open, ranks, [&](const Parallel& parallel) {
      // FSDP has the same layout, and variants that exchange heads.
      if (any && strategy.id == StrategyName::megatron_1d && parallel.tensor == 1 && parallel.context > 1) return;
      trial.parallel = parallel;
      trial.parallel.context = std::max<int64_t>(1, parallel.context);
      trial.train.micro_batch = base.train.micro_batch;  // sharding specs of a 2.5D mesh change it
      for (const auto& [key, value] : given)
        if (key->belongs(strategy.id) && key->get(trial) != value) return;
      add_exchanges();
    });
  };
  Config base = config;
  const auto add_batches = [&] {  // for one number of stages and of replicas
    for (const int64_t micro : divisors(config.train.global_batch / base.parallel.data)) {
      if (is_given(config, "train.micro_batch") && config.train.micro_batch != micro) continue;
      const int64_t stages = base.parallel.stages, count = config.train.global_batch / (base.parallel.data * micro);
      if (stages > count && !is_given(config, "parallel.stages")) continue;
      if (base.parallel.chunks > 1 && count % stages != 0) {
        note(
            format("chunks = {} needs a multiple of stages = {} micro-batches per step", base.parallel.chunks, stages));
        continue;
      }
      base.train.micro_batch = micro;
      seen.clear();
      for (const NamedStrategy* strategy : strategies()) {
        base.parallel.strategy = strategy->id;
        if (any || config.parallel.strategy == strategy->id) add_all(*strategy, base);
      }
    }
  };
  for (const int64_t stages : stage_counts(config, devices)) {
    base.parallel.stages = stages;
    for (const int64_t data : divisors(devices / stages)) {
      if (is_given(config, "parallel.data") && config.parallel.data != data) continue;
      base.parallel.data = data;
      if (config.train.global_batch % data == 0)
        add_batches();
      else
        note(format("global_batch = {} does not divide over data = {} replicas", config.train.global_batch, data));
    }
  }
  if (is_given(config, "parallel.stages") && devices % config.parallel.stages != 0)
    note(format("stages = {} does not divide {} devices", config.parallel.stages, devices));
  return found;
}

namespace {

bool has_layout(const Config& config, int64_t devices) {
  std::string broken;
  return !std::ranges::all_of(enumerate_layouts(config, devices, broken), needs_spec);
}

}  // namespace

std::vector<int64_t> nearest_device_counts(Config config, int64_t devices) {
  if (needs_spec(config)) config.origins.erase("parallel.strategy");  // autoddl's space contains the named layouts
  const int64_t farthest = std::clamp<int64_t>(devices / 16, 64, 4096);
  const auto any = [&](int64_t count) { return has_layout(config, count); };
  const double end = now_seconds() + 2;
  int64_t fewer = 0, more = 0;
  for (int64_t step = 1; step <= farthest && (fewer == 0 || more == 0) && now_seconds() < end; ++step) {
    if (fewer == 0 && step < devices && any(devices - step)) fewer = devices - step;
    if (more == 0 && any(devices + step)) more = devices + step;
  }
  std::vector<int64_t> counts = {fewer, more};
  std::erase(counts, 0);
  return counts;
}

std::vector<std::string> nearest_batches(const Config& config, int64_t devices) {
  const bool micro_given = is_given(config, "train.micro_batch");
  Config trial = config;
  if (needs_spec(trial)) trial.origins.erase("parallel.strategy");
  const double end = now_seconds() + 1;
  std::vector<std::string> texts;
  // Appends the nearest values below and above the configured one, which are multiples of `unit`.
  const auto add = [&](const char* name, int64_t& value, int64_t unit, int64_t most) {
    const int64_t given = value, below = given / unit * unit;
    std::vector<int64_t> found;
    for (const int64_t step : {-unit, unit})
      for (value = step < 0 && below < given ? below : below + step; value >= unit && value <= most; value += step) {
        if (now_seconds() > end) break;
        if (!has_layout(trial, devices)) continue;
        found.push_back(value);
        break;
      }
    value = given;
    if (!found.empty()) texts.push_back(format("{} = {}", name, fmt::join(found, " or ")));
  };
  const int64_t data = is_given(config, "parallel.data") ? std::max<int64_t>(1, config.parallel.data) : 1;
  add("global_batch", trial.train.global_batch, (micro_given ? config.train.micro_batch : 1) * data,
      2 * std::max(config.train.global_batch, (micro_given ? config.train.micro_batch : 1) * devices));
  if (micro_given) add("micro_batch", trial.train.micro_batch, 1, config.train.global_batch);
  return texts;
}

std::vector<Config> variants(const Config& config, int64_t devices_per_node) {
  std::vector<Config> all;
  std::vector<ModelSharding> seen = {anonymous(sharding_of(config))};
  const NamedStrategy& strategy = strategy_of(config);
  if (strategy.variants == nullptr) return all;
  strategy.variants(config, devices_per_node, [&](const Parallel& parallel) {
    Config other = config;
    other.parallel = parallel;
    bool kept = true;
    for_own_keys(config, [&](const Key& key) {
      const bool open =
          key.get(config) == Value("auto") || (key.name == "context_heads" && key.get(config) == Value(int64_t{0}));
      if (!open && is_given(config, key.path().c_str())) kept &= key.get(other) == key.get(config);
    });
    if (!kept || !layout_fits(other)) return;
    seen.push_back(anonymous(sharding_of(other)));
    if (std::count(seen.begin(), seen.end(), seen.back()) == 1) all.push_back(std::move(other));
  });
  return all;
}

}  // namespace trainer::config
