#pragma once
// How single operators are timed, and the operands they are timed on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "tensor/exec.h"
#include "tensor/tensor.h"

namespace trainer::measure {

/// Returns the seconds of one call: the median of `repeats` measurements after one that is not counted. Scratch is
/// planned by a dry run, as in training. A measurement is of calls in a row until `window` seconds have passed: ranks
/// that share cores and begin together also end together, so none measures while others have left it their cores. On a
/// GPU it is of ten at least, so that starting the first and waiting for the last hardly count.
template <typename Op>
double median_seconds(Exec& ex, const Op& op, int repeats, double window = 0) {
  const int64_t in_a_row = ex.device.kind() == device::Kind::cuda ? 10 : 1;
  const std::unique_ptr<device::Device> dry = device::make_dry(ex.device);
  Arena arena(ex.device);
  Meter unused;
  arena.record("operator", [&] {
    Exec plan{*dry, arena, unused};
    run(plan, op);
  });
  arena.seal();
  Exec planned{ex.device, arena, ex.meter};
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
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
    if (i > 0) seconds.push_back(passed / static_cast<double>(calls));
  }
  return median(seconds);
}

/// Fill a tensor with random operands, the same for the same name: normal draws; uniform in [-1, 1).
void fill_normal(device::Device& device, const Tensor& tensor, std::string_view name);
void fill_uniform(device::Device& device, const Tensor& tensor, std::string_view name);

}  // namespace trainer::measure
