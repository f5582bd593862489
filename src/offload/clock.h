#pragma once
// A virtual clock: simulates a list of operations at given rates. Lanes work concurrently; those that use the link in
// the same direction, or the host's memory, share it in proportion to their remaining work, which is optimal.
#include "offload/cost.h"

namespace trainer::offload {

/// Simulates a list and returns the seconds from the time the norm is known until all compute weights are updated.
/// Operations that do not wait for the norm (gradients, first loads) are already done by then if `hidden`, else they
/// begin at that time.
double play(const Schedule& schedule, std::span<const Subgroup> subgroups, const Rates& rates, const Sizes& sizes,
            bool hidden = true);

}  // namespace trainer::offload
