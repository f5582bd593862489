#pragma once
// Measures the rates of this machine within tenths of a second, so that a share can be chosen.
#include "offload/cost.h"

namespace trainer::offload {

/// Memory that the measurement uses: a number of states and the bytes of each, for a parameter's p, m, v and gradient.
inline constexpr int64_t kStatesOnDevice = 2, kStatesOnHost = 3;
int64_t calibration_bytes(int64_t elements, DType state);

/// Measures the rates of an update over at most `elements` parameters:
///   - copies to and from the device, and updates on the host: all three concurrently, as in an update
///   - updates on the device: on their own, since they use neither the link nor the host
///   - host memory: the faster of a copy and of a loop with an update's memory traffic, by all threads
///   - blocking copies to pageable host memory: only on a GPU
///   - the start of an operation: a round trip through the host's threads, on a GPU also an event to wait for
/// `host` is the device of the state. Memory is allocated and released as "calibration". On a dry device nothing else
/// happens, and all rates are 1.
Rates measure_rates(device::Device& device, device::Device& host, int64_t elements, DType state);

}  // namespace trainer::offload
