#include "train/spikes.h"

#include <cmath>
#include <limits>

namespace trainer::train {

double spike_limit(std::span<const double> values, double sigma) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (values.size() < kLeastHistory) return kNone;
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / (n - 1));
  return deviation > 0 ? mean + sigma * deviation : kNone;
}

void remember(std::vector<double>& values, double value, int64_t window) {
  if (std::isfinite(value)) values.push_back(value);
  const auto most = static_cast<size_t>(window);
  if (values.size() > most) values.erase(values.begin(), values.end() - static_cast<std::ptrdiff_t>(most));
}

}  // namespace trainer::train
