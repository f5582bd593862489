#pragma once
// Rules of a strategy: the ranks it takes and what must divide over them. Pure functions; validation, construction and
// the choice of layouts for trained models all use them.
#include <string>
#include <vector>

#include "config/config.h"

namespace trainer::config {

/// Returns the ranks that share one replica of the model: the product of the strategy's own axes.
int64_t ranks_of_replica(const Config& config);
/// Returns how many groups of those ranks have sequences of their own, as replicas do: a micro-batch is divided over
/// them.
int64_t depth_of_replica(const Config& config);
/// Returns the key that gives ranks_of_replica(), and that key with its value: "tensor = 4", "mesh = [2, 2]", "grid =
/// [2, 2, 1]".
const char* replica_key(const Config& config);
std::string replica_text(const Config& config);

struct LayoutRule {
  bool holds = true;
  std::vector<const char*> keys;  // all that it depends on, the one to blame first
  std::string text;               // with the numbers and what would fit
};
/// Returns the rules of the configured strategy (config resolved), in the order in which messages name them.
std::vector<LayoutRule> layout_rules(const Config& config);
/// Says whether all rules hold.
bool layout_fits(const Config& config);
/// Throws Code::config with the first that does not hold.
void require_layout(const Config& config);

}  // namespace trainer::config
