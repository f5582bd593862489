#pragma once
// The tensors of a ParamStore as a checkpoint sees them.
#include <vector>

#include "checkpoint/snapshot.h"
#include "params/param_store.h"

namespace trainer::checkpoint {

/// Of each parameter the master weights under its own name and, with `moments`, Adam's first and second moments as
/// "NAME#m" and "NAME#v". The slices point into the store's buffers.
///
/// To save: what this rank owns, so that all ranks together cover each tensor exactly once.
std::vector<TensorSlice> slices_to_save(const params::ParamStore& store, bool moments);
/// To fill: all that this rank holds; call store.refresh_compute() afterwards.
std::vector<TensorSlice> slices_to_fill(const params::ParamStore& store, bool moments);

}  // namespace trainer::checkpoint
