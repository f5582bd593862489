#include "checkpoint/param_slices.h"

namespace trainer::checkpoint {

std::vector<TensorSlice> param_slices(const params::ParamStore& store, bool moments) {
  std::vector<TensorSlice> slices;
  slices.reserve(store.params().size() * (moments ? 3 : 1));
  for (const params::Param& param : store.params()) {
    const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
    slices.push_back({param.name, param.shape, group.master, param.runs});
    if (!moments) continue;
    slices.push_back({param.name + "#m", param.shape, group.m, param.runs});
    slices.push_back({param.name + "#v", param.shape, group.v, param.runs});
  }
  return slices;
}

}  // namespace trainer::checkpoint
