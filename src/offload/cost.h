#pragma once
// The time of an update in closed form, and the fraction of it that the device should take. Pure functions; the clock
// (clock.h) simulates the list of operations instead.
#include "offload/schedule.h"

namespace trainer::offload {

/// Rates of one rank while all ranks of its host are busy, with copies in both directions.
struct Rates {
  double to_device = 0, to_host = 0;  // bytes/s of the link
  double host = 0, device = 0;        // parameters updated per second
  double memory = 0;                  // bytes/s of host memory: this rank's share
  double start = 0;                   // seconds to start an operation
  /// Bytes of host memory traffic per parameter of an update on the host, its refresh included; 0: the traffic of the
  /// built-in update.
  double host_bytes = 0;
  double pageable = 0;  // bytes/s to host memory that is not pinned, blocking after each tensor; 0: same as to_host
};

/// Bytes of host memory traffic per parameter: of an update on the host, including the refresh's read; of a load or a
/// drain.
double host_traffic(const Rates& rates, const Sizes& sizes);

/// Returns the seconds from when the norm is known until all weights are updated, assuming that gradients have arrived
/// and slots are filled by then; drains may end later. With n_c, n_g, n_r elements updated on the host, streamed and
/// resident, n = n_g minus the contents of d slots of S elements at the start and at the end, and w, c and b bytes of
/// p, m and v, of compute weights, and of the memory traffic of an update on the host, it is the longest of
///     host     n_c/U_c                                device   (n_g + n_r)/U_g
///     link     (w·n + c·n_c)/B_in and w·n/B_out       memory   (b·n_c + 2w·n)/B_m
///     slots    n·(w/B_in + 1/U_g + w/B_out)/d
/// plus the last refresh c·S/B_in, and the start-up of operations.
double update_seconds(const Plan& plan, std::span<const Subgroup> subgroups, const Rates& rates, const Sizes& sizes);

/// Returns the fastest streamed share of the elements that are not resident: 0, 1 or a/b with b up to 8; the smallest
/// if several are equally fast. The rest of `plan` is used as it is; 0 if it has no slots.
config::Fraction best_share(const Plan& plan, std::span<const Subgroup> subgroups, const Rates& rates,
                            const Sizes& sizes);

}  // namespace trainer::offload
