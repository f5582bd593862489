#pragma once
// Spikes: losses and gradient norms far above those of the last steps (OLMo 2, 2025, skips such updates).
#include <cstdint>
#include <span>
#include <vector>

namespace trainer::train {

/// The number of values that a limit needs.
inline constexpr size_t kLeastHistory = 64;

/// Returns mean + sigma · standard deviation of the values of earlier steps (n − 1 in the denominator). Larger values
/// are spikes. Returns infinity for fewer than kLeastHistory values, and for values that are all equal.
double spike_limit(std::span<const double> values, double sigma);

/// Appends the value of a step if it is finite, and drops the oldest values beyond `window`.
void remember(std::vector<double>& values, double value, int64_t window);

}  // namespace trainer::train
