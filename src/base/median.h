#pragma once
#include <algorithm>
#include <vector>

namespace trainer {

/// Returns the middle value, or the mean of the two middle ones. Requires at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace trainer
