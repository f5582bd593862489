#include "offload/cost.h"

#include <algorithm>
#include <numeric>

namespace trainer::offload {

double host_traffic(const Rates& rates, const Sizes& sizes) {
  if (rates.host_bytes > 0) return rates.host_bytes;
  // Without bounce buffers the refresh reads the master weights themselves.
  const int64_t written = sizes.bounces() ? sizes.compute : 0;
  return static_cast<double>(sizes.gradient + 2 * sizes.kept() + written + sizes.compute);
}

double update_seconds(const Placement& placement, std::span<const Subgroup> subgroups, const Rates& rates,
                      const Sizes& sizes) {
  const Share share = share_of(residencies(placement, static_cast<int>(subgroups.size())), subgroups);
  const auto host = static_cast<double>(share.host), streamed = static_cast<double>(share.streamed);
  const auto resident = static_cast<double>(share.resident), largest = static_cast<double>(share.largest_streamed);
  const double state = static_cast<double>(sizes.kept()), compute = static_cast<double>(sizes.compute);
  const double moved = std::max(0.0, streamed - placement.slots * largest);
  const double round_trip = state / rates.to_device + 1 / rates.device + state / rates.to_host;
  const double longest = std::max({host / rates.host, (streamed + resident) / rates.device,
                                   (state * moved + compute * host) / rates.to_device, state * moved / rates.to_host,
                                   (host_traffic(rates, sizes) * host + 2 * state * moved) / rates.memory,
                                   placement.slots > 0 ? moved * round_trip / placement.slots : 0.0});
  const auto count = static_cast<double>(subgroups.size());
  const double average = static_cast<double>(share.total()) / std::max(1.0, count);
  const double last_refresh = host > 0 ? compute * average / rates.to_device : 0;
  return longest + last_refresh + rates.start * count;
}

config::Fraction best_share(const Placement& placement, std::span<const Subgroup> subgroups, const Rates& rates,
                            const Sizes& sizes) {
  config::Fraction best{0, 1};
  double least = -1;
  for (int64_t b = 1; b <= 8; ++b)
    for (int64_t a = 0; a <= b; ++a) {
      if (std::gcd(a, b) != 1 || (a > 0 && placement.slots == 0)) continue;
      Placement tried = placement;
      tried.device_share = {a, b};
      const double seconds = update_seconds(tried, subgroups, rates, sizes);
      const bool smaller = a * best.den < best.num * b;
      if (least >= 0 && (seconds > least || (seconds == least && !smaller))) continue;
      least = seconds;
      best = tried.device_share;
    }
  return best;
}

}  // namespace trainer::offload
