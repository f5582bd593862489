#pragma once
// The rules of a configuration, and the optimizer that applies them in device memory.
#include <memory>
#include <string>
#include <vector>

#include "config/forward.h"
#include "optim/rule.h"

namespace trainer::optim {

using Rules = std::vector<std::unique_ptr<Rule>>;

/// Returns the rules of a configuration for a run that computes in `compute`. A parameter is updated by the first rule
/// that takes it. The last rule takes every parameter.
Rules make_rules(const config::Config& config, DType compute);
/// Returns the rule that optim.name selects, the first of them. If it is elementwise, it is the only one.
std::unique_ptr<Rule> named_rule(const config::Config& config, DType compute = DType::f32);

/// Returns a line for the log if the learning rate is not that of the schedule for all parameters; otherwise nothing.
std::string rates_text(const config::Config& config);

/// Returns the values of the rule that has any; at most one has.
Agreed agreed(const Rules& rules, int64_t t);
Update make_update(const Rules& rules, double lr, int64_t t, double gradient_scale);

/// Makes the store keep the states of its parameters' rules. Call before the store is allocated.
void keep_states(params::ParamStore& store, const Rules& rules);

/// True if a CPU with this number of threads should overlap a run's updates with its forward passes. Updates are bound
/// by memory and GEMMs are not, but gradients then need memory of their own. So it pays off with small micro-batches,
/// when updates take a large share of a step.
bool overlaps_forward(const config::Config& config, int threads);

/// Creates the optimizer, whose update is complete when step() returns. `rules` and `store`, which must be allocated,
/// must outlive it. With ZeRO-1 each replica updates its own chunk, and the chunks' all-gather overlaps with the update
/// of the next group.
/// `overlaps`: on a CPU, half of the threads update the weights during the next forward pass instead, which waits for
/// each group before it first reads the group's weights. Until then, the gradients must stay as they are.
std::unique_ptr<Optimizer> make_optimizer(params::ParamStore& store, const Rules& rules, bool overlaps = false);

}  // namespace trainer::optim
