#pragma once
// Update times of all schedules of optimizer offload, from blocking to interleaved, at measured or given rates.
#include <string>
#include <vector>

#include "config/forward.h"
#include "device/device.h"
#include "offload/clock.h"

namespace trainer::bench {

struct OffloadRung {
  std::string rung, name;     // "B4", "interleaved, best share"
  config::Fraction streamed;  // as a fraction of the elements that are not resident
  config::Fraction resident;  // as a fraction of all subgroups
  double played_s = 0;        // from the end of the backward pass until all weights are updated, on the virtual clock
  double predicted_s = 0;     // by the closed form; 0 for blocking updates, which it does not cover
};

/// The update of one rank: its size, and the rates at which it runs.
struct OffloadCase {
  int64_t parameters = 0, subgroup = 0;  // elements
  int slots = 3;
  offload::Rates rates;
  offload::Sizes sizes;
};

/// Returns the rates of debug.emulate_device if it is set; if not, measures those of the device and its host over at
/// most `elements` parameters (offload/calibrate.h).
offload::Rates rates_of(const config::Config& config, device::Device& device, DType compute, int64_t elements);

/// Returns the rungs: B0 for comparison, then slowest first if the link between device and host is slow:
///   B0   all on the device, no offload
///   B1   all on the host, gradients through pageable memory tensor by tensor, blocking on each copy
///   B1p  the same with gradients through pinned memory
///   B2   all on the host, gradient flushes overlapped with the backward pass
///   B3   a fifth resident on the device, the rest as B2
///   B4   interleaved, at shares of a quarter, a half, all, and the best one
///   B5   a fifth resident, the rest interleaved at the best share
std::vector<OffloadRung> offload_ladder(const OffloadCase& work);

/// Returns B4 at every share a/b with b up to 8.
std::vector<OffloadRung> offload_sweep(const OffloadCase& work);

}  // namespace trainer::bench
