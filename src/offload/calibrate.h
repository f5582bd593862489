#pragma once
// Measures the rates of this machine in a few tenths of a second, so that a share can be chosen.
#include "offload/cost.h"

namespace trainer::offload {

/// Memory that the measurement takes: the number of states, each a p, m, v and gradient for all measured parameters.
inline constexpr int64_t kStatesOnDevice = 2, kStatesOnHost = 3;
int64_t calibration_bytes(int64_t elements, DType state);

/// Measures the rates of an update over at most `elements` parameters:
///   - copies to and from the device, and updates on the host: all three at once, as they run in an update
///   - updates on the device: on their own, since they use neither the link nor the host
///   - host memory: the better of a copy and of a loop with an update's memory traffic, by all threads
///   - blocking copies to host memory that is not pinned: only on a GPU
///   - start-up of an operation: an empty parallel loop on the host, and on a GPU setting and awaiting a mark
/// `host` is the device that holds the state. Memory is allocated as "calibration" and released. On a dry device only
/// this is done, and all rates are 1.
Rates measure_rates(device::Device& device, device::Device& host, int64_t elements, DType state);

}  // namespace trainer::offload
