#pragma once
// Measures the rates of this machine within tenths of a second, so that a share can be chosen.
#include "offload/cost.h"

namespace trainer::offload {

/// Memory that the measurement takes: a number of states and the bytes of each, for a parameter's p, m, v and gradient.
inline constexpr int64_t kStatesOnDevice = 2, kStatesOnHost = 3;
int64_t calibration_bytes(int64_t elements, DType state);

/// Measures the rates of an update over at most `elements` parameters:
///   - copies to and from the device, and updates on the host: while all three run at once, as they do in an update
///   - updates on the device: on their own, since they use neither the link nor the host
///   - host memory: the better of a copy and of a loop with an update's memory traffic, by all threads
///   - copies to host memory that is not pinned, blocking: only on a GPU
///   - the start of an operation: a turn of the host's threads, and on a GPU a mark set and waited for
/// `host` is the device of the state. Memory is taken and given back as "calibration". On a dry device nothing else
/// happens, and all rates are 1.
Rates measure_rates(device::Device& device, device::Device& host, int64_t elements, DType state);

}  // namespace trainer::offload
