#pragma once
// Fingerprints of parameters: ranks that hold the same elements compare them without sending them.
#include <cstdint>
#include <functional>
#include <vector>

#include "params/param_store.h"

namespace trainer::train {

/// Returns a fingerprint (ops/fingerprint.h) of the elements of each parameter that this rank holds, in the order of
/// store.params(). Elements have their numbers in the global tensor, so ranks that hold the same elements have the same
/// fingerprint, wherever they store them; padding does not count. `flat`: returns the buffer of a group, on the device
/// of `ex`. `scratch`: memory on that device for at least one i64. Waits for the device. Not collective.
std::vector<uint64_t> fingerprints(Exec& ex, const params::ParamStore& store,
                                   const std::function<Tensor(const params::Group&)>& flat, Tensor scratch);

}  // namespace trainer::train
