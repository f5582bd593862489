#pragma once
// Timing of single operators on random operands.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "tensor/exec.h"
#include "tensor/tensor.h"

namespace trainer::ops {

/// Options for timing calls of an operator.
struct Timing {
  int repeats = 5;
  /// If set, calls are timed in one window of `repeats` times this many seconds, on all ranks of a job at the same
  /// time. Ranks that share cores take turns, so a short measurement on one rank is meaningless; the mean of all ranks
  /// over a long window is the speed that each gets.
  double window = 0;
  /// Returns the largest value on any rank; collective. Ranks call it so that they begin together, with windows of
  /// equal length, and none still measures when other ranks have stopped competing for its cores.
  std::function<double(double)> largest_on_any_rank = [](double value) { return value; };
};

/// Returns the seconds per call, after an uncounted call: the median of the repeats, or the mean over a window. Scratch
/// is planned by a dry run, as in training. On a GPU, calls are timed ten in a row, so that launching the first and
/// waiting for the last hardly count.
template <typename Op>
double seconds_of(Exec& ex, const Op& op, const Timing& timing) {
  constexpr double kLeastCalls = 5;  // per window, so that all ranks' windows end within a fifth of their length
  const int64_t in_a_row = ex.device.kind() == device::DeviceKind::cuda ? 10 : 1;
  const std::unique_ptr<device::Device> dry = device::make_dry(ex.device);
  Arena arena(ex.device);
  Meter unused;
  arena.record("operator", [&] {
    Exec plan{*dry, arena, unused};
    run(plan, op);
  });
  arena.seal();
  Exec planned{ex.device, arena, ex.meter};
  const auto mean_of_calls = [&](double window) {
    ex.device.synchronize();
    const double start = now_seconds();
    int64_t calls = 0;
    double passed = 0;
    do {
      for (int64_t call = 0; call < in_a_row; ++call, ++calls) {
        arena.begin("operator");
        run(planned, op);
        arena.end();
      }
      ex.device.synchronize();
      passed = now_seconds() - start;
    } while (passed < window);
    return passed / static_cast<double>(calls);
  };
  const double first = mean_of_calls(0);
  if (timing.window > 0)
    return mean_of_calls(std::max(timing.repeats * timing.window, kLeastCalls * timing.largest_on_any_rank(first)));
  std::vector<double> seconds;
  for (int i = 0; i < timing.repeats; ++i) seconds.push_back(mean_of_calls(0));
  return median(seconds);
}
template <typename Op>
double median_seconds(Exec& ex, const Op& op, int repeats) {
  return seconds_of(ex, op, {.repeats = repeats});
}

/// Fill a tensor with random values that depend only on the name: standard normal, and uniform in [-1, 1).
void fill_normal(device::Device& device, const Tensor& tensor, std::string_view name);
void fill_uniform(device::Device& device, const Tensor& tensor, std::string_view name);

}  // namespace trainer::ops
