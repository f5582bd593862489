#pragma once
// A virtual clock: simulates a list of operations at given rates, without performing them. Streams run concurrently.
// Streams that use the link in the same direction, or the host's memory, at the same time share it in proportion to
// their remaining work, which is the best that sharing can achieve.
#include "offload/cost.h"

namespace trainer::offload {

/// Simulates a list and returns the seconds from the time when the norm is known until all compute weights are updated.
/// If `hidden`, operations that do not wait for the norm (gradients, first loads) are assumed to be complete by then;
/// otherwise they begin at that time.
double play(const Schedule& schedule, std::span<const Subgroup> subgroups, const Rates& rates, const Sizes& sizes,
            bool hidden = true);

}  // namespace trainer::offload
