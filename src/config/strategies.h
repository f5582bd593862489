#pragma once
// The table of named strategies, whose rows are in strategies*.cpp. A row turns the keys of a strategy into a
// ModelSharding; all other code is the same for all strategies. StrategyName lists the rows in their order, so that
// keys can name the strategies that use them.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "sharding/rules.h"

namespace trainer::config {

/// An error in the layout of a configuration.
struct BrokenRule {
  std::vector<const char*> keys;  // all keys on which the rule depends, the likely cause first
  std::string text;               // the message, with the values found and values that would fit
};

struct NamedStrategy {
  StrategyName id;
  const char* name;         // in parallel.strategy
  const char* extents_key;  // "parallel.grid": determines the ranks of a replica; messages name it
  sharding::ModelSharding (*sharding)(const Config&);
  /// Visits all settings of the strategy's keys for replicas of `ranks` ranks, including settings that break rules; if
  /// parallel.context is 0, in a search, with the numbers of ranks that may share sequences.
  void (*each)(const Config&, int64_t ranks, const std::function<void(const Parallel&)>& visit);
  /// Visits settings with the same sharding but another rank placement or cache, for nodes of `devices_per_node`
  /// devices; null if there are none.
  void (*variants)(const Config&, int64_t devices_per_node,
                   const std::function<void(const Parallel&)>& visit) = nullptr;
  /// Adds the errors that prevent the strategy's keys from describing a sharding; null if every setting describes one.
  void (*check_keys)(const Config&, std::vector<BrokenRule>& broken) = nullptr;
  /// Names of keys of [parallel], outermost first, whose values multiply the ranks that the key of extents describes.
  std::span<const char* const> factors = {};
};
/// Returns all strategies, in the order of StrategyName.
std::span<const NamedStrategy* const> strategies();
/// Returns the name in parallel.strategy, "auto" included.
const char* name_of(StrategyName strategy);
/// Returns the configured strategy's row; for "auto", the first one.
const NamedStrategy& strategy_of(const Config& config);

/// Returns the divisors of n in ascending order.
std::vector<int64_t> divisors(int64_t n);
/// Returns lists of one to three extents above 1 whose product is `ranks`.
std::vector<std::vector<int64_t>> axis_lists(int64_t ranks, int64_t devices_per_node);

/// Returns the configured strategy's sharding over data × replica ranks (data = 0 counts as 1). The strategy's keys
/// must have been checked.
sharding::ModelSharding sharding_of(const Config& config);
sharding::Extents extents_of(const Config& config);

}  // namespace trainer::config
