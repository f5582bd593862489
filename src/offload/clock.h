#pragma once
// A virtual clock: plays a list of operations at given rates, without performing them. Lanes run concurrently. Those
// that use the link in the same direction, or the host's memory, at the same time share it in proportion to their
// remaining work, which is the best that sharing can achieve.
#include "offload/cost.h"

namespace trainer::offload {

/// Plays a list and returns the seconds from when the norm is known until all compute weights are updated. If `hidden`,
/// operations that do not wait for the norm (gradients, first loads) have finished by then at no cost; otherwise they
/// begin at that time.
double play(const Schedule& schedule, std::span<const Subgroup> subgroups, const Rates& rates, const Sizes& sizes,
            bool hidden = true);

}  // namespace trainer::offload
