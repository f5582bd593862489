#pragma once
// A virtual clock: plays a list of operations at stated rates, without doing them. Lanes work side by side; those that
// use the link in one direction, or the host's memory, at the same time share it as they have work left, which is the
// best that sharing can do.
#include "offload/cost.h"

namespace trainer::offload {

/// Plays a list and returns the seconds from the known norm until all compute weights are new. Operations that do not
/// wait for the norm (gradients, first loads) are done by then at no cost when `hidden`, else they begin with the norm.
double play(const Schedule& schedule, std::span<const Subgroup> subgroups, const Rates& rates, const Sizes& sizes,
            bool hidden = true);

}  // namespace trainer::offload
