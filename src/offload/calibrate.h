#pragma once
// What this machine does, in tens of milliseconds, so that a share can be chosen.
#include "offload/cost.h"

namespace trainer::offload {

/// Medians of a few repetitions over at most `elements` parameters, each rate measured alone. `host` is the home of the
/// state. Memory is taken and given back as "calibration"; on a dry device nothing else happens, and all rates are 1.
/// Host memory counts with the traffic that its threads reach in copying.
Rates measure_rates(device::Device& device, device::Device& host, int64_t elements, DType state);

}  // namespace trainer::offload
