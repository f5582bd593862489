#include "checkpoint/param_slices.h"

namespace trainer::checkpoint {
namespace {

void add_slices(std::vector<TensorSlice>& slices, const params::ParamStore& store, const params::Param& param,
                params::SlotId slot, bool states, bool owned_only) {
  const auto add = [&](const std::string& suffix, const Tensor& local, comm::Chunk range) {
    slices.push_back({param.name + suffix, param.shape, local, mesh::clip_runs(param.runs, range.begin, range.count),
                      &store.home()});
  };
  const auto [offset, elements] = store.range_of(slot);
  if (store.is_constant()) {
    const Tensor weights = store.stored_weight(slot);
    TRAINER_CHECK(weights.data != nullptr || store.device().dry() || elements == 0, "{} is packed already", param.name);
    add("", weights, {offset, elements});
    return;
  }
  const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
  const comm::Chunk weights = owned_only ? group.owned : group.master_range();
  add("", group.master_of(weights), weights);
  if (!states) return;
  for (const params::State& state : group.states)
    if (const comm::Chunk chunk = state.chunk_with(offset); chunk.count > 0) {
      const comm::Chunk range = params::overlap(chunk, owned_only ? group.owned : group.held);
      add("#" + state.suffix, group.state(state.suffix, range), range);
    }
}

std::vector<TensorSlice> slices(const params::ParamStore& store, bool states, bool owned_only) {
  std::vector<TensorSlice> slices;
  for (params::SlotId slot = 0; slot < store.slots(); ++slot)
    for (const int index : store.params_of(slot)) {
      const params::Param& param = store.params()[static_cast<size_t>(index)];
      if (owned_only && !param.primary) continue;
      add_slices(slices, store, param, slot, states, owned_only);
    }
  return slices;
}

}  // namespace

std::vector<TensorSlice> slices_to_save(const params::ParamStore& store, bool states) {
  store.settle();
  return slices(store, states, true);
}
std::vector<TensorSlice> slices_held(const params::ParamStore& store, bool states) {
  store.settle();
  return slices(store, states, false);
}
std::vector<TensorSlice> slices_to_fill(const params::ParamStore& store, bool states) {
  store.forget();
  return slices(store, states, false);
}

}  // namespace trainer::checkpoint
