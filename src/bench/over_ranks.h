#pragma once
// The mean and the largest of the ranks' values, returned on every rank. Collective.
#include <algorithm>
#include <vector>

#include "comm/world.h"

namespace trainer::bench {

inline double mean_over_ranks(comm::World& world, double value) {
  world.control().sum({&value, 1});
  return value / world.size();
}

inline double largest_over_ranks(comm::World& world, double value) {
  std::vector<double> values(static_cast<size_t>(world.size()));
  values[static_cast<size_t>(world.rank())] = value;
  world.control().sum(values);
  return *std::ranges::max_element(values);
}

}  // namespace trainer::bench
