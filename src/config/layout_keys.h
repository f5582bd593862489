#pragma once
// Helpers of layouts.cpp and layouts_search.cpp for the keys of strategies.
#include "config/keys.h"
#include "config/layouts.h"

namespace trainer::config {

/// Returns the errors that prevent the configured strategy's keys from describing a sharding.
std::vector<BrokenRule> malformed_keys(const Config& config);

/// Calls visit(key) for every key that belongs to the configured strategy only.
template <typename Visit>
void for_own_keys(const Config& config, const Visit& visit) {
  for (const Key& key : keys())
    if (key.belongs(strategy_of(config).id)) visit(key);
}

}  // namespace trainer::config
