#pragma once
#include <cmath>
#include <string_view>
#include <vector>

#include "base/philox.h"

namespace trainer::tests {

/// A sequence of random choices, determined by a seed and a name.
class Draws {
 public:
  Draws(uint64_t seed, std::string_view name) : key_(philox_key(seed, name)) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(philox_at(key_, next_++) % static_cast<uint64_t>(n)); }
  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))];
  }
  double between(double low, double high) { return low + (high - low) * static_cast<double>(below(1001)) / 1000; }
  /// Like between(), but uniform in the logarithm.
  double between_logarithms(double low, double high) {
    return low * std::pow(high / low, static_cast<double>(below(1001)) / 1000);
  }

 private:
  PhiloxKey key_;
  uint64_t next_ = 0;
};

}  // namespace trainer::tests
