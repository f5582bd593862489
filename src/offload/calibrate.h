#pragma once
// Measures this machine's rates in a few tenths of a second, so that the streamed share can be chosen.
#include "offload/cost.h"

namespace trainer::offload {

/// Measures the rates of an update over at most `elements` parameters:
///   - copies to and from the device, and updates on the host: all three concurrently, as in an update
///   - updates on the device: on their own, since they use neither the link nor the host
///   - host memory bandwidth: the better of a copy and a loop with an update's memory traffic, on all threads
///   - blocking copies to host memory that is not pinned: on a GPU only
///   - start-up time of an operation: an empty parallel loop on the host, plus setting and awaiting an event on a GPU
/// `host` is the device that stores the state. Memory is allocated as "calibration" and released. On a dry device
/// nothing else is done, and all rates are 1.
Rates measure_rates(device::Device& device, device::Device& host, int64_t elements, DType master,
                    const optim::ElementwiseRule& rule);

}  // namespace trainer::offload
