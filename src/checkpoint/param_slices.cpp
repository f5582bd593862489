#include "checkpoint/param_slices.h"

namespace trainer::checkpoint {
namespace {

std::vector<TensorSlice> slices(const params::ParamStore& store, bool moments, bool owned_only) {
  std::vector<TensorSlice> slices;
  slices.reserve(store.params().size() * (moments ? 3 : 1));
  for (const params::Param& param : store.params()) {
    if (owned_only && !param.primary) continue;
    const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
    const auto add = [&](const char* suffix, const Tensor& local, comm::Chunk range) {
      slices.push_back({param.name + suffix, param.shape, local, mesh::clip_runs(param.runs, range.begin, range.count),
                        &store.home()});
    };
    const comm::Chunk weights = owned_only ? group.owned : group.master_range();
    add("", group.master_of(weights), weights);
    if (!moments) continue;
    const comm::Chunk state = owned_only ? group.owned : group.held;
    add("#m", group.m_of(state), state);
    add("#v", group.v_of(state), state);
  }
  return slices;
}

}  // namespace

std::vector<TensorSlice> slices_to_save(const params::ParamStore& store, bool moments) {
  store.settle();
  return slices(store, moments, true);
}
std::vector<TensorSlice> slices_to_fill(const params::ParamStore& store, bool moments) {
  store.forget();
  return slices(store, moments, false);
}

}  // namespace trainer::checkpoint
