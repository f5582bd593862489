#pragma once
// The table of named strategies. A row turns the keys of a strategy into a ModelSharding; everything else is the same
// for all strategies. Their names also appear where keys are declared (keys_parallel.cpp) and in tags.cpp, which writes
// autoddl's tables.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "sharding/rules.h"

namespace trainer::config {

/// A rule that a configuration breaks.
struct BrokenRule {
  std::vector<const char*> keys;  // all that it depends on, the one to blame first
  std::string text;               // with the numbers and what would fit
};

struct NamedStrategy {
  const char* name;
  const char* extents_key;  // "parallel.grid": gives the ranks of a replica; messages name it
  sharding::ModelSharding (*sharding)(const Config&);
  /// Visits the settings of its keys for replicas of `ranks` ranks, whether their rules hold or not.
  void (*each)(const Config&, int64_t ranks, const std::function<void(const Parallel&)>& visit);
  /// Visits settings that place or cache the same sharding in other ways, for nodes of so many devices.
  void (*variants)(const Config&, int64_t devices_per_node, const std::function<void(const Parallel&)>& visit);
  /// Adds what keeps its keys from saying a sharding at all; null: nothing does.
  void (*check_keys)(const Config&, std::vector<BrokenRule>& broken) = nullptr;
};
std::span<const NamedStrategy> strategies();
/// Returns the configured strategy's row; for "auto", the first one.
const NamedStrategy& strategy_of(const Config& config);

/// Returns the divisors of n in ascending order.
std::vector<int64_t> divisors(int64_t n);

/// Returns how the configured strategy cuts the model over data x replica ranks (0 replicas count as one). Its keys
/// have been checked.
sharding::ModelSharding sharding_of(const Config& config);
sharding::Extents extents_of(const Config& config);

}  // namespace trainer::config
