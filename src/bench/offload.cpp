#include "bench/offload.h"

#include <numeric>

#include "config/config.h"
#include "device/stream.h"
#include "offload/calibrate.h"
#include "offload/make.h"
#include "optim/make.h"

namespace trainer::bench {
namespace {

using config::Fraction;

constexpr Fraction kStatic{1, 5};  // the resident fraction in B3 and B5

class Ladder {
 public:
  explicit Ladder(const OffloadCase& work) : work_(work) {
    TRAINER_CHECK(work.parameters >= 1 && work.subgroup >= 64,
                  "offload_ladder() requires at least 1 parameter and subgroups of at least 64, not {} and {}",
                  work.parameters, work.subgroup);
    params::Group group;
    group.held = {0, work.parameters};
    subgroups_ = offload::cut({&group, 1}, work.subgroup);
  }

  OffloadRung rung(std::string rung, std::string name, const offload::Placement& placement,
                   const offload::Rates& rates) const {
    const std::vector<offload::Residency> where = residencies(placement, count());
    const offload::Schedule list = offload::schedule({.residencies = where,
                                                      .slots = placement.slots,
                                                      .blocking = placement.blocking,
                                                      .bounce = work_.sizes.bounces(),
                                                      .loaded = true});
    const double played = play(list, subgroups_, rates, work_.sizes, /*hidden=*/!placement.blocking);
    const double predicted = placement.blocking ? 0 : update_seconds(placement, subgroups_, rates, work_.sizes);
    const int64_t common = std::gcd<int64_t, int64_t>(placement.resident, count());
    return {std::move(rung), std::move(name), placement.device_share, {placement.resident / common, count() / common},
            played,          predicted};
  }
  OffloadRung rung(std::string name, std::string text, const offload::Placement& placement) const {
    return rung(std::move(name), std::move(text), placement, work_.rates);
  }
  offload::Placement placement(const Fraction& streamed, const Fraction& resident = {}) const {
    return {.device_share = streamed,
            .slots = work_.slots,
            .resident = static_cast<int>(count() * resident.num / resident.den)};
  }
  offload::Placement best(const Fraction& resident = {}) const {
    offload::Placement placement = this->placement({}, resident);
    placement.device_share = best_share(placement, subgroups_, work_.rates, work_.sizes);
    return placement;
  }
  offload::Placement blocking() const {
    offload::Placement placement = this->placement({});
    placement.blocking = true;
    return placement;
  }

 private:
  int count() const { return static_cast<int>(subgroups_.size()); }

  const OffloadCase& work_;
  std::vector<offload::Subgroup> subgroups_;
};

}  // namespace

offload::Rates rates_of(const config::Config& config, device::Device& device, DType compute, int64_t elements) {
  if (const std::optional<offload::Rates> emulated = offload::rates_of(config.debug)) return *emulated;
  const std::unique_ptr<device::Device> host = device::make_host(device, config.offload.pinned);
  const DType master = accumulator_of(compute);
  const optim::Rules rules = optim::make_rules(config, compute);
  return offload::measure_rates(device, *host, elements, master, *rules.back()->elementwise());
}

std::vector<OffloadRung> offload_ladder(const OffloadCase& work) {
  const Ladder ladder(work);
  offload::Rates pageable = work.rates;  // for B1, which copies only gradients to the host
  if (pageable.pageable > 0) pageable.to_host = pageable.pageable;
  return {ladder.rung("B0", "on the device, without offload", ladder.placement({}, {1, 1})),
          ladder.rung("B1", "blocking, all on the host, pageable gradients", ladder.blocking(), pageable),
          ladder.rung("B1p", "blocking, all on the host, pinned gradients", ladder.blocking()),
          ladder.rung("B2", "asynchronous, all on the host", ladder.placement({})),
          ladder.rung("B3", "asynchronous, a fifth resident", ladder.placement({}, kStatic)),
          ladder.rung("B4", "interleaved", ladder.placement({1, 4})),
          ladder.rung("B4", "interleaved", ladder.placement({1, 2})),
          ladder.rung("B4", "interleaved", ladder.placement({1, 1})),
          ladder.rung("B4", "interleaved, best share", ladder.best()),
          ladder.rung("B5", "interleaved, best share, a fifth resident", ladder.best(kStatic))};
}

std::vector<OffloadRung> offload_sweep(const OffloadCase& work) {
  const Ladder ladder(work);
  std::vector<OffloadRung> rungs;
  for (int64_t b = 1; b <= 8; ++b)
    for (int64_t a = 0; a <= b; ++a)
      if (std::gcd(a, b) == 1) rungs.push_back(ladder.rung("B4", "interleaved", ladder.placement({a, b})));
  return rungs;
}

}  // namespace trainer::bench
