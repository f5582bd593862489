#include "offload/calibrate.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/median.h"
#include "device/lane.h"
#include "ops/adamw.h"
#include "tensor/buffer.h"

namespace trainer::offload {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 20;
constexpr int kRepeats = 3;

/// Seconds of a call: the median after one that does not count.
template <typename F>
double seconds_of(F&& call) {
  std::vector<double> seconds;
  for (int i = 0; i <= kRepeats; ++i) {
    const double start = now_seconds();
    call();
    if (i > 0) seconds.push_back(std::max(1e-9, now_seconds() - start));
  }
  return median(seconds);
}

}  // namespace

Rates measure_rates(device::Device& device, device::Device& host, int64_t elements, DType state) {
  const int64_t n = std::min(elements, kMostElements);
  const auto on = [&](device::Device& where) { return Buffer(where, "calibration", {4, n}, state); };
  const Buffer here = on(host), there = on(device);
  if (device.dry()) return {1, 1, 1, 1, 1, 0, 0};
  const auto part = [&](const Buffer& buffer, int64_t which) {
    return buffer.tensor().row_range(which, 1).reshape({n});
  };
  const auto update = [&](device::Device& where, const Buffer& buffer) {
    Arena none(where, Arena::Mode::heap);
    Meter meter;
    Exec ex{where, none, meter};
    const ops::AdamWScalars scalars{
        .beta1 = 0.9, .beta2 = 0.95, .inv_sqrt_correction = 1, .eps = 1e-8, .negative_step = -1e-6};
    ops::run(ex, ops::AdamW{.p = part(buffer, 0),
                            .m = part(buffer, 1),
                            .v = part(buffer, 2),
                            .g = part(buffer, 3),
                            .compute = {},
                            .scalars = scalars});
    where.synchronize();
  };
  const std::unique_ptr<device::Device> lane = device::make_lane(device);
  const auto count = static_cast<double>(n), bytes = static_cast<double>(here.tensor().bytes());
  Rates rates;
  rates.to_device = bytes / seconds_of([&] {
                      lane->copy_to_device(there.tensor().data, here.tensor().data, here.tensor().bytes());
                      lane->synchronize();
                    });
  rates.to_host =
      bytes / seconds_of([&] { lane->copy_to_host(here.tensor().data, there.tensor().data, here.tensor().bytes()); });
  rates.host = count / seconds_of([&] { update(host, here); });
  rates.device = count / seconds_of([&] { update(*lane, there); });
  constexpr int64_t kPiece = 1 << 18;
  const int64_t half = here.tensor().bytes() / 2;
  rates.memory = bytes / seconds_of([&] {
                   host.host_pool().parallel_for(divide_up(half, kPiece), [&](int64_t piece) {
                     const int64_t at = piece * kPiece;
                     std::memcpy(here.tensor().data + half + at, here.tensor().data + at,
                                 static_cast<size_t>(std::min(kPiece, half - at)));
                   });
                 });
  return rates;
}

}  // namespace trainer::offload
