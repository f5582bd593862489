#pragma once
// What a strategy asks of a configuration: the ranks it takes and what must divide over them. Pure; validation,
// construction and the choice of layouts for trained models all go by it.
#include <string>
#include <vector>

#include "config/config.h"

namespace trainer::config {

/// Ranks that share one replica of the model: the product of the strategy's own axes.
int64_t ranks_of_replica(const Config& config);
/// Groups of them that work on sequences of their own, as replicas do: a micro-batch is shared out over them.
int64_t depth_of_replica(const Config& config);
/// The key that says so, and what it says: "tensor = 4", "mesh = [2, 2]", "grid = [2, 2, 1]".
const char* replica_key(const Config& config);
std::string replica_text(const Config& config);

struct LayoutRule {
  bool holds = true;
  std::vector<const char*> keys;  // all that it depends on, the one to blame first
  std::string text;               // with the numbers and what would fit
};
/// Of the strategy named in the configuration, which is resolved, in the order of telling.
std::vector<LayoutRule> layout_rules(const Config& config);
/// Whether all hold.
bool layout_fits(const Config& config);
/// Throws Code::config with the first that does not hold.
void require_layout(const Config& config);

}  // namespace trainer::config
