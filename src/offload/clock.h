#pragma once
// A virtual clock: plays a list of operations at stated rates, without doing them. Lanes work side by side; those that
// use the link in one direction, or the host's memory, at the same time share it as they have work left, which is the
// best that sharing can do.
#include "offload/cost.h"

namespace trainer::offload {

struct Timeline {
  std::vector<double> start, end;  // s, by operation
  Seconds busy = {};               // by kind
  double weights = 0;              // when the last compute weights are new
  double all = 0;                  // when everything is done
};

/// Plays a list. The norm is known and the backward pass has ended at 0. What waits for neither (gradients, first
/// loads) is done then at no cost when `hidden`, else it begins at 0.
Timeline play(const Schedule& schedule, std::span<const Subgroup> subgroups, const Rates& rates, const Sizes& sizes,
              bool bounce, bool hidden = true);

}  // namespace trainer::offload
