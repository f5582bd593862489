#pragma once
// The tensors of a ParamStore in a checkpoint.
#include <vector>

#include "checkpoint/snapshot.h"
#include "params/param_store.h"

namespace trainer::checkpoint {

/// Each parameter has its master weights, or constant weights, under its own name. With `states` it also has its
/// optimizer's states as "NAME#suffix", such as Adam's moments "NAME#m" and "NAME#v". The slices point into the store's
/// buffers.
///
/// Returns the slices that this rank owns, so that all ranks together cover each tensor exactly once.
std::vector<TensorSlice> slices_to_save(const params::ParamStore& store, bool states);
/// Returns all slices that this rank holds, copies included, for reading.
std::vector<TensorSlice> slices_held(const params::ParamStore& store, bool states);
/// Returns all slices that this rank holds. Call store.refresh_compute() after they are filled.
std::vector<TensorSlice> slices_to_fill(const params::ParamStore& store, bool states);

}  // namespace trainer::checkpoint
