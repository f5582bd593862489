#pragma once
// The tensors of a ParamStore as a checkpoint sees them.
#include <vector>

#include "checkpoint/snapshot.h"
#include "params/param_store.h"

namespace trainer::checkpoint {

/// Of each parameter the master weights under its own name and, with `moments`, Adam's first and second moments as
/// "NAME#m" and "NAME#v". The slices point into the store's buffers, for saving and for filling; after filling weights,
/// call store.refresh_compute().
std::vector<TensorSlice> param_slices(const params::ParamStore& store, bool moments);

}  // namespace trainer::checkpoint
