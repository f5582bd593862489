#pragma once
// The time of an update in closed form, and the best streamed share. Pure functions; the clock (clock.h) simulates the
// list of operations instead.
#include "offload/schedule.h"

namespace trainer::offload {

/// Rates of one rank while all ranks of its host are busy and copies run in both directions.
struct Rates {
  double to_device = 0, to_host = 0;  // link bandwidth in bytes/s
  double host = 0, device = 0;        // parameters updated per second
  double memory = 0;                  // this rank's share of the host's memory bandwidth, in bytes/s
  double start = 0;                   // start-up time of an operation in seconds
  /// Bytes of host memory traffic per parameter for an update on the host, including the refresh; 0: the traffic of the
  /// built-in update.
  double host_bytes = 0;
  double pageable = 0;  // bytes/s of blocking copies to host memory that is not pinned; 0: same as to_host
};

/// Returns the bytes of host memory traffic per parameter for an update on the host, including the refresh.
double host_traffic(const Rates& rates, const Sizes& sizes);

/// Returns the seconds from the time when the norm is known until all weights are updated, assuming that gradients have
/// arrived and slots are filled by then; drains may end later. Let n_c, n_g and n_r be the numbers of elements updated
/// on the host, streamed, and resident; d slots of S elements each; n = n_g − d·S, at least 0; and, in bytes per
/// element, w of master weights and states, c of compute weights, and b of memory traffic for an update on the host.
/// The time is the longest of
///     host     n_c/U_c                                device   (n_g + n_r)/U_g
///     link     (w·n + c·n_c)/B_in and w·n/B_out       memory   (b·n_c + 2w·n)/B_m
///     slots    n·(w/B_in + 1/U_g + w/B_out)/d
/// plus the last refresh, of an average subgroup, and the operations' start-up times.
double update_seconds(const Placement& placement, std::span<const Subgroup> subgroups, const Rates& rates,
                      const Sizes& sizes);

/// Returns the fastest streamed share of the elements that are not resident: 0, 1 or a/b with b up to 8; the smallest
/// if several are equally fast; 0 if `placement` has no slots. Everything else is taken from `placement`.
config::Fraction best_share(const Placement& placement, std::span<const Subgroup> subgroups, const Rates& rates,
                            const Sizes& sizes);

}  // namespace trainer::offload
