#include "params/param_store.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "params/initial_values.h"
#include "tensor/host_copy.h"

namespace trainer::params {

ParamStore::ParamStore(device::Device& device, DType compute, mesh::Mesh* mesh, bool split_state)
    : ParamTable(mesh == nullptr ? mesh::MeshShape() : mesh->shape(), mesh == nullptr ? 0 : mesh->rank()),
      device_(device),
      compute_(compute),
      mesh_(mesh),
      weights_(*this) {
  if (mesh == nullptr || !mesh->shape().has("data") || mesh->size("data") == 1) return;
  replicas_ = {.grads = &mesh->along("data", comm::Purpose::grads),
               .weights = &mesh->along("data", comm::Purpose::weights),
               .split_state = split_state};
}

Tensor Group::state(std::string_view suffix, comm::Chunk range) const {
  for (const State& state : states) {
    if (state.suffix != suffix) continue;
    if (range.count == 0) return state.memory.tensor().range(0, 0);
    int64_t before = 0;  // elements of the chunks before
    for (const comm::Chunk chunk : state.chunks) {
      const comm::Chunk here = overlap(chunk, held);
      if (overlap(range, here) == range)
        return state.memory.tensor().range(before + range.begin - here.begin, range.count);
      before += here.count;
    }
  }
  TRAINER_CHECK(false, "{}: elements {} to {} have no state {} on this rank", name, range.begin,
                range.begin + range.count, suffix);
  return {};
}

void ParamStore::allocate(Gradients gradients) {
  const DType state = state_dtype();
  gradients_ = gradients;
  close();
  weights_.allocate();
  if (gradients == Gradients::none) {
    for (SlotId slot = 0; slot < slots(); ++slot) constant_.emplace_back(device_, "weights", stored(slot), compute_);
    return;
  }
  groups_.reserve(slot_groups().size());
  for (const SlotGroup& declared : slot_groups()) {
    Group& group = groups_.emplace_back();
    static_cast<SlotGroup&>(group) = declared;
    const Shape flat{group.elements};
    group.owned = comm::chunk_of(group.elements, replicas_.count(), replicas_.index());
    group.held = replicas_.split_state ? group.owned : comm::Chunk{0, group.elements};
    const Shape held{group.held.count};
    if (compute_ != state || home_ != nullptr) {
      group.compute = Buffer(device_, "weights", flat, compute_);
      group.master = Buffer(home(), "master_weights", held, state);
    } else {
      group.master = Buffer(device_, "weights", flat, state);
    }
    if (gradients == Gradients::own_memory) group.grad_memory = Buffer(device_, "gradients", flat, state);
    group.grad = group.grad_memory ? group.grad_memory.tensor() : Tensor{nullptr, flat, state, 0};
    for (const auto& [spec, chunks] : kept_) {
      const std::vector<comm::Chunk>& here = chunks[groups_.size() - 1];
      int64_t elements = 0;
      for (const comm::Chunk chunk : here) elements += overlap(chunk, group.held).count;
      group.states.push_back({spec.suffix, here, Buffer(home(), "optimizer", {elements}, spec.type)});
    }
  }
}

void ParamStore::place_gradient(Exec& ex, int index) {
  if (state_owner_ != nullptr) state_owner_->await(index);
  if (!gradients_in_arena()) return;
  Group& group = groups_[static_cast<size_t>(index)];
  group.grad = ex.arena.keep("gradients", group.grad.shape, group.grad.dtype);
  // Nothing writes the elements between slots, but the norm counts them.
  for (size_t i = 0; i < group.slots.size(); ++i) {
    const Range slot = range_of(group.slots[i]);
    const int64_t begin = slot.offset + slot.count;
    const int64_t end = i + 1 < group.slots.size() ? range_of(group.slots[i + 1]).offset : group.elements;
    const Tensor between = group.grad.range(begin, end - begin);
    ex.device.clear(between.data, between.bytes());
  }
}

void ParamStore::initialize(uint64_t seed) {
  if (device_.dry()) return;
  forget();
  HostCopy host;  // drawn on the host, so values are bitwise identical on every device
  const auto draw = [&](const Tensor& weights, int64_t begin, int64_t count, const std::vector<int>& indices) {
    host.get(home(), weights);
    for (const int index : indices) {
      const Param& param = params()[static_cast<size_t>(index)];
      params::initialize(device_, param, mesh::clip_runs(param.runs, begin, count), host.tensor(), seed);
    }
    host.put();
  };
  for (const Group& group : groups_) {
    const auto [begin, count] = group.master_range();
    draw(group.master, begin, count, group.params);
  }
  for (SlotId slot = 0; is_constant() && slot < slots(); ++slot) {
    const auto [offset, count] = range_of(slot);
    draw(stored_weight(slot), offset, count, params_of(slot));
  }
  refresh_compute();
}

void ParamStore::refresh_compute() {
  weights_changed();
  if (device_.dry()) return;
  Arena heap(device_, Arena::Mode::heap);
  Meter meter;
  Exec ex{device_, heap, meter};
  if (is_constant()) weights_.pack_constant(ex);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (!group.compute) continue;
    if (home_ == nullptr) {
      ops::run(ex, ops::Cast{group.master, group.compute.tensor().range(group.held.begin, group.held.count)});
    } else {
      send_compute(group);
    }
    if (replicas_.split_state && has(static_cast<int>(g))) gather_weights(ex, static_cast<int>(g)).join(ex);
  }
}

void ParamStore::send_compute(const Group& group) {
  constexpr int64_t kPiece = int64_t{1} << 24;
  const Tensor held = group.compute.tensor().range(group.held.begin, group.held.count);
  if (compute_ == state_dtype()) {
    device_.copy_to_device(held.data, group.master.tensor().data, held.bytes());
    return;
  }
  Arena heap(*home_, Arena::Mode::heap);
  Meter meter;
  Exec ex{*home_, heap, meter};
  const Scratch piece = ex.take("weights.rounded", {std::min(kPiece, group.held.count)}, compute_);
  for (int64_t at = 0; at < group.held.count; at += kPiece) {
    const int64_t count = std::min(kPiece, group.held.count - at);
    const Tensor rounded = piece.tensor().range(0, count);
    ops::run(ex, ops::Cast{group.master.tensor().range(at, count), rounded});
    device_.copy_to_device(held.range(at, count).data, rounded.data, rounded.bytes());
  }
}

comm::Ticket ParamStore::gather_weights(Exec& ex, int index) {
  const Group& group = groups_[static_cast<size_t>(index)];
  const Tensor all = group.compute ? group.compute.tensor() : group.master.tensor();
  return replicas_.weights->all_gather(ex, all.range(group.owned.begin, group.owned.count), all);
}

Tensor ParamStore::stored_in(const Tensor& flat, SlotId slot) const {
  const int64_t offset = range_of(slot).offset * size_of(flat.dtype);
  return {flat.data == nullptr ? nullptr : flat.data + offset, stored(slot), flat.dtype, 0};
}

Tensor ParamStore::stored_weight(SlotId slot) const {
  if (is_constant()) return {constant_[static_cast<size_t>(slot)].tensor().data, stored(slot), compute_, 0};
  TRAINER_CHECK(!groups_.empty(), "the weights of group {} are not allocated",
                slot_groups()[static_cast<size_t>(group_of(slot))].name);
  const Group& group = groups_[static_cast<size_t>(group_of(slot))];
  if (state_owner_ != nullptr) state_owner_->await(group_of(slot));
  return stored_in(group.compute ? group.compute.tensor() : group.master.tensor(), slot);
}

Tensor ParamStore::weight(SlotId slot) const {
  TRAINER_CHECK(!is_sharded(slot), "{} is sharded: WeightCache::hold() returns its matrix",
                params()[static_cast<size_t>(params_of(slot).front())].name);
  return stored_weight(slot);
}

Tensor ParamStore::gradient(SlotId slot) const {
  const auto group = static_cast<size_t>(group_of(slot));
  TRAINER_CHECK(!groups_.empty() && groups_[group].grad, "no gradients: the store was not allocated for training");
  return stored_in(groups_[group].grad, slot);
}

}  // namespace trainer::params
