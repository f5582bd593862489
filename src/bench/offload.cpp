#include "bench/offload.h"

namespace trainer::bench {

std::vector<OffloadRung> offload_ladder(int64_t parameters, int64_t subgroup, int slots, const offload::Rates& rates,
                                        const offload::Sizes& sizes) {
  TRAINER_CHECK(parameters >= 1 && subgroup >= 64, "{} parameters in subgroups of {}", parameters, subgroup);
  params::Group group;
  group.held = {0, parameters};
  const std::vector<offload::Subgroup> subgroups = offload::cut({&group, 1}, subgroup);
  const auto count = static_cast<int>(subgroups.size());
  const bool bounce = sizes.compute != sizes.state;
  const auto rung = [&](std::string name, config::Fraction share, bool blocking) {
    const offload::Plan plan{.device_share = share, .slots = slots, .blocking = blocking};
    const std::vector<offload::Place> where = places(plan, count);
    const offload::Schedule list =
        offload::schedule({.places = where, .slots = slots, .blocking = blocking, .bounce = bounce});
    const offload::Timeline line = play(list, subgroups, rates, sizes, bounce, /*hidden=*/!blocking);
    const double predicted =
        blocking ? 0 : update_seconds(share_of(where, subgroups), count, slots, rates, sizes, bounce);
    return OffloadRung{std::move(name), share, line.weights, predicted};
  };
  const offload::Plan any{.slots = slots};
  return {rung("blocking, all on the host", {0, 1}, true),
          rung("asynchronous, all on the host", {0, 1}, false),
          rung("interleaved", {1, 4}, false),
          rung("interleaved", {1, 2}, false),
          rung("interleaved", {1, 1}, false),
          rung("interleaved, best share", best_share(any, subgroups, rates, sizes, bounce), false)};
}

}  // namespace trainer::bench
