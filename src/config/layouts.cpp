#include "config/layouts.h"

#include <algorithm>
#include <cmath>

#include "base/join.h"
#include "config/keys.h"
#include "config/layout_rules.h"

namespace trainer::config {
namespace {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d != n / d) all.push_back(n / d);
  }
  std::ranges::sort(all);
  return all;
}

/// Enumeration collects the layouts of one number of ranks.
class Enumeration {
 public:
  Enumeration(const Config& config, int64_t devices, std::string& broken)
      : config_(config), devices_(devices), broken_(broken) {}

  std::vector<Config> all() {
    for (const int64_t data : divisors(devices_)) {
      if (is_given(config_, "parallel.data") && config_.parallel.data != data) continue;
      if (config_.train.global_batch % data != 0) {
        note(format("global_batch = {} does not divide over data = {} replicas", config_.train.global_batch, data));
        continue;
      }
      for (const int64_t micro : divisors(config_.train.global_batch / data)) {
        if (is_given(config_, "train.micro_batch") && config_.train.micro_batch != micro) continue;
        trial_ = config_;
        trial_.parallel.data = data;
        trial_.train.micro_batch = micro;
        strategies(devices_ / data);
      }
    }
    return std::move(found_);
  }

 private:
  bool wants(const char* strategy) const {
    return !is_given(config_, "parallel.strategy") || config_.parallel.strategy == "auto" ||
           config_.parallel.strategy == strategy;
  }

  void strategies(int64_t ranks) {
    if (wants("megatron-1d") && allows("parallel.tensor", config_.parallel.tensor == ranks)) {
      for (const bool sequences : {true, false}) {
        if (!allows("parallel.sequence_parallel", config_.parallel.sequence_parallel == sequences)) continue;
        if (ranks == 1 && !sequences) continue;
        trial_.parallel.strategy = "megatron-1d";
        trial_.parallel.tensor = ranks;
        trial_.parallel.sequence_parallel = sequences;
        add();
      }
    }
    if (wants("optimus-2d")) squares(ranks);
    if (wants("axonn-4d")) grids(ranks);
    if (wants("autoddl")) {
      trial_.parallel.strategy = "autoddl";
      if (is_given(config_, "parallel.layer")) {
        trial_.parallel.axes = config_.parallel.axes;
        if (ranks_of_replica(trial_) == ranks) add();
      } else if (ranks > 1) {
        trial_.parallel.axes = {ranks};
        trial_.parallel.layer.clear();
        trial_.parallel.head.clear();
        trial_.parallel.table.clear();
        found_.push_back(trial_);
      }
    }
  }

  void squares(int64_t ranks) {
    const std::vector<int64_t>& given = config_.parallel.mesh;
    trial_.parallel.strategy = "optimus-2d";
    for (int64_t q = 2; q * q <= ranks; ++q) {
      if (ranks % (q * q) != 0) continue;
      const int64_t depth = ranks / (q * q);
      trial_.parallel.mesh = depth == 1 ? std::vector<int64_t>{q, q} : std::vector<int64_t>{q, q, depth};
      if (!allows("parallel.mesh", given == trial_.parallel.mesh)) continue;
      for (const char* panels : {"gather", "ring"}) {
        if (!allows("parallel.panels", config_.parallel.panels == panels)) continue;
        trial_.parallel.panels = panels;
        add();
      }
    }
  }

  void grids(int64_t ranks) {
    trial_.parallel.strategy = "axonn-4d";
    for (const int64_t x : divisors(ranks))
      for (const int64_t y : divisors(ranks / x)) {
        trial_.parallel.grid = {x, y, ranks / (x * y)};
        const bool given = is_given(config_, "parallel.grid") || is_given(config_, "parallel.strategy");
        if (!given && ranks == x) continue;  // as megatron-1d
        if (allows("parallel.grid", config_.parallel.grid == trial_.parallel.grid)) add();
      }
  }

  bool allows(const char* key, bool same) const { return same || !is_given(config_, key); }

  void add() {
    if (layout_fits(trial_)) {
      found_.push_back(trial_);
    } else if (broken_.empty()) {
      for (const LayoutRule& rule : layout_rules(trial_))
        if (!rule.holds) note(rule.text);
    }
  }
  void note(const std::string& text) {
    if (broken_.empty()) broken_ = text;
  }

  const Config& config_;
  const int64_t devices_;
  std::string& broken_;
  Config trial_;
  std::vector<Config> found_;
};

void extend(std::vector<std::vector<int64_t>>& all, std::vector<int64_t>& axes, int64_t left) {
  if (left == 1 && !axes.empty()) all.push_back(axes);
  if (axes.size() == 3) return;
  for (const int64_t extent : divisors(left)) {
    if (extent == 1) continue;
    axes.push_back(extent);
    extend(all, axes, left / extent);
    axes.pop_back();
  }
}

}  // namespace

namespace {

/// Says whether matrices of layers are gathered from pieces, so that they can be kept.
bool gathers_weights(const Parallel& p) {
  if (p.strategy == "axonn-4d") return p.grid.at(2) > 1;
  if (p.strategy != "autoddl") return false;
  return std::ranges::any_of(p.layer, [](const LayerTags& tags) {
    return (tags.qkv + tags.out + tags.up + tags.down).find('f') != std::string::npos;
  });
}

}  // namespace

std::vector<Config> variants(const Config& config, int64_t devices_per_node) {
  std::vector<Config> all;
  const Parallel& p = config.parallel;
  const auto add = [&](auto member, const auto& value) {
    Config other = config;
    other.parallel.*member = value;
    if (layout_fits(other)) all.push_back(std::move(other));
  };
  const bool spans = ranks_of_replica(config) * p.data > devices_per_node;
  if (p.strategy == "axonn-4d") {
    // Axes of one rank have no place.
    const auto places = [&](std::string order) {
      std::erase_if(order, [&](char axis) { return axis != 'd' && p.grid.at(axis - 'x') == 1; });
      return order;
    };
    std::vector<std::string> seen = {places(p.order)};
    if (spans && !is_given(config, "parallel.order"))
      for (const char* order : {"yxzd", "xyzd", "yzxd", "zyxd", "xzyd", "zxyd"}) {
        if (std::ranges::count(seen, places(order)) > 0) continue;
        seen.push_back(places(order));
        add(&Parallel::order, order);
      }
  }
  if (gathers_weights(p) && p.cache_layers == 0 && !is_given(config, "parallel.cache_layers"))
    add(&Parallel::cache_layers, config.model.n_layer);
  if (p.strategy == "optimus-2d" && spans && !is_given(config, "parallel.node_tile"))
    for (const int64_t rows : divisors(devices_per_node)) {
      const int64_t cols = devices_per_node / rows;
      const bool fits = p.mesh.at(0) % rows == 0 && p.mesh.at(1) % cols == 0;
      if (fits && rows > 1) add(&Parallel::node_tile, std::vector<int64_t>{rows, cols});
    }
  return all;
}

bool is_automatic(const Config& config) { return config.parallel.strategy == "auto"; }

bool has_tags(const Config& config) { return config.parallel.strategy == "autoddl"; }
bool wants_tags(const Config& config) { return has_tags(config) && config.parallel.layer.empty(); }

bool is_given(const Config& config, const char* key) { return config.origins.contains(key); }

std::vector<Config> enumerate_layouts(const Config& config, int64_t devices, std::string& broken) {
  return Enumeration(config, devices, broken).all();
}

std::vector<int64_t> nearest_device_counts(Config config, int64_t devices) {
  if (wants_tags(config)) config.origins.erase("parallel.strategy");  // named layouts are points of its space
  const int64_t farthest = std::clamp<int64_t>(devices / 16, 64, 4096);
  const auto any = [&](int64_t count) {
    std::string broken;
    return !std::ranges::all_of(enumerate_layouts(config, count, broken), wants_tags);
  };
  std::vector<int64_t> counts;
  for (const int64_t direction : {-1, 1})
    for (int64_t step = 1; step <= farthest && devices + direction * step > 0; ++step)
      if (any(devices + direction * step)) {
        counts.push_back(devices + direction * step);
        break;
      }
  return counts;
}

std::vector<std::vector<int64_t>> axis_lists(int64_t ranks, int64_t devices_per_node) {
  std::vector<std::vector<int64_t>> all;
  std::vector<int64_t> axes;
  extend(all, axes, ranks);
  // Where replicas span nodes, the ranks of a node are inner axes of their own: neighbours talk over the faster links.
  const auto apart = [&](const std::vector<int64_t>& list) {
    int64_t inner = 1;
    for (size_t i = list.size(); i-- > 0 && inner < devices_per_node;) inner *= list[i];
    return inner == devices_per_node || ranks <= devices_per_node || list.size() == 1;
  };
  if (devices_per_node > 1) std::erase_if(all, [&](const auto& list) { return !apart(list); });
  return all;
}

void drop_other_strategies(Config& config) {
  for (const Key& key : keys()) {
    if (key.section != "parallel" || key.belongs_to.empty() || key.belongs(config.parallel.strategy)) continue;
    key.set(config, key.initial);
    config.origins.erase(key.path());
  }
}

std::string recompute_text(const Config& config) {
  return std::get<std::string>(find_key("train", "recompute")->get(config));
}

std::string layout_text(const Config& config) {
  const Parallel& p = config.parallel;
  const std::string kept = p.cache_layers > 0 ? format(", {} layers kept", p.cache_layers) : "";
  std::string text;
  if (p.strategy == "autoddl") {
    text = format("axes {}", fmt::join(p.axes, " x ")) + kept;
  } else if (p.strategy == "optimus-2d") {
    text = format("mesh {}, {}", fmt::join(p.mesh, " x "), p.panels);
    if (p.node_tile != std::vector<int64_t>{1, 1}) text += format(", tiles {}", fmt::join(p.node_tile, " x "));
  } else if (p.strategy == "axonn-4d") {
    text = format("grid {}", fmt::join(p.grid, " x "));
    if (p.order != "yxzd") text += ", order " + p.order;
    text += kept;
  } else {
    text = format("tensor {}{}", p.tensor, p.tensor > 1 && !p.sequence_parallel ? ", all rows" : "");
  }
  text += format(", data {}", p.data) + (p.zero_stage == 1 ? ", zero 1" : "");
  if (config.offload.optimizer == OffloadOptimizer::none) return text;
  return text + ", state on the host" + (config.offload.resident > 0 ? format(" but {}", config.offload.resident) : "");
}

}  // namespace trainer::config
