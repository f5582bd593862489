#pragma once
// The rules of a configuration, and the optimizer that applies them in device memory.
#include <memory>
#include <vector>

#include "config/config.h"
#include "optim/rule.h"

namespace trainer::optim {

using Rules = std::vector<std::unique_ptr<Rule>>;

/// Returns the rules of a configuration for a run that computes in `compute`. A parameter is updated by the first rule
/// that takes it. The last rule takes every parameter.
Rules make_rules(const config::Config& config, DType compute);

/// Makes the store keep the states of its parameters' rules. Call before the store is allocated.
void keep_states(params::ParamStore& store, const Rules& rules);

/// Creates the optimizer, whose update is complete when step() returns. `rules` and `store`, which must be allocated,
/// must outlive it. With ZeRO-1 each replica updates its own chunk, and the chunks' all-gather overlaps with the update
/// of the next group.
std::unique_ptr<Optimizer> make_optimizer(params::ParamStore& store, const Rules& rules);

}  // namespace trainer::optim
