// The operations of an engine. Each runs on the thread of its stream.
#include <vector>

#include "offload/engine.h"
#include "ops/elementwise.h"

namespace trainer::offload {
namespace {

constexpr uint32_t kPoison = 0x7fc0dead;

/// An Exec for a stream, whose arena and meter are unused.
struct StreamExec {
  explicit StreamExec(device::Device& device) : none(device, Arena::Mode::heap), ex{device, none, meter} {}
  Arena none;
  Meter meter;
  Exec ex;
};

}  // namespace

Engine::Kept Engine::kept_of(const Subgroup& subgroup) const {
  const params::Group& group = group_of(subgroup);
  Kept kept;
  kept.add(group.master_of(subgroup.part));
  for (const params::StateSpec& state : states_) kept.add(group.state(state.suffix, subgroup.part));
  return kept;
}

Engine::Kept Engine::kept_in(const Slot& slot, int64_t count) const {
  Kept kept;
  int64_t at = 0;
  const auto add = [&](DType type) {
    kept.add({slot.memory.tensor().data + at, {count}, type, 0});
    at += slot.elements * size_of(type);
  };
  add(store_.state_dtype());
  for (const params::StateSpec& state : states_) add(state.type);
  return kept;
}

void Engine::poison(device::Device& device, const Tensor& tensor) const {
  if (!options_.poison) return;
  const std::vector<uint32_t> pattern(static_cast<size_t>(divide_up(tensor.bytes(), int64_t{4})), kPoison);
  device.copy_to_device(tensor.data, pattern.data(), tensor.bytes());
}

void Engine::expect_version(const Operation& op, int64_t version, const Turn& turn) const {
  TRAINER_CHECK(version == turn.number - 1,
                "subgroup {} of {}: update {} requires the state of the previous update, but found that of update {}",
                op.subgroup, group_of(subgroups_[static_cast<size_t>(op.subgroup)]).name, turn.number, version);
}

void Engine::flush(const Subgroup& subgroup, const Tensor& gradient, const Tensor& on_host) {
  device::Device& stream = *stream_devices_[static_cast<size_t>(Stream::to_host)];
  Tensor sent = gradient;
  if (rounded_) {
    sent = rounded_.tensor().range(0, subgroup.part.count);
    StreamExec here(stream);
    ops::run(here.ex, ops::Cast{gradient, sent});
  }
  stream.copy_to_host(on_host.data, sent.data, sent.bytes());
}

void Engine::update(device::Device& device, const Turn& turn, const Subgroup& subgroup, const Kept& kept,
                    const Tensor& gradient, const Tensor& compute) {
  StreamExec here(device);
  selection_.each(subgroup.group, subgroup.part, [&](comm::Chunk part, optim::ParamClass of_class) {
    const auto of = [&](const Tensor& x) { return x.range(part.begin - subgroup.part.begin, part.count); };
    Kept piece;
    for (const Tensor& tensor : kept.all()) piece.add(of(tensor));
    rule_.update(here.ex, turn.update, of_class,
                 {.p = piece.master(),
                  .states = piece.states(),
                  .g = of(gradient),
                  .compute = compute ? of(compute) : Tensor{}});
  });
}

// Waits for the work that the compute thread has queued on the device.
void Engine::prepare(const Operation& op) {
  const auto group = static_cast<size_t>(subgroups_[static_cast<size_t>(op.subgroup)].group);
  if (op.kind == OperationKind::flush || op.kind == OperationKind::update_device) events_[group]->wait();
}

void Engine::perform(const Operation& op, int64_t list) {
  if (options_.before) options_.before(op);
  const auto index = static_cast<size_t>(op.subgroup);
  const Subgroup& subgroup = subgroups_[index];
  const params::Group& group = group_of(subgroup);
  const int64_t count = subgroup.part.count;
  const Turn& turn = turn_of(list);
  device::Device& stream =
      op.stream() == Stream::host ? store_.home() : *stream_devices_[static_cast<size_t>(op.stream())];
  Slot* const slot = op.slot < 0 ? nullptr : &slots_[static_cast<size_t>(op.slot)];
  const Kept home = kept_of(subgroup), there = slot == nullptr ? Kept{} : kept_in(*slot, count);
  const Tensor gradient = group.grad.range(subgroup.part.begin, count);
  const Tensor on_host =
      gradients_[static_cast<size_t>(subgroup.group)].tensor().range(subgroup.part.begin - group.held.begin, count);
  const Tensor compute = group.compute.tensor().range(subgroup.part.begin, count);
  const Tensor bounce = op.bounce < 0 ? Tensor{} : bounces_[static_cast<size_t>(op.bounce)].tensor().range(0, count);
  switch (op.kind) {
    case OperationKind::flush:
      flush(subgroup, gradient, on_host);
      break;
    case OperationKind::load:
      for (size_t i = 0; i < home.count; ++i)
        stream.copy_to_device(there.tensors[i].data, home.tensors[i].data, home.tensors[i].bytes());
      stream.synchronize();
      slot->subgroup = op.subgroup;
      slot->version = versions_[index];
      break;
    case OperationKind::update_device: {
      TRAINER_CHECK(slot->subgroup == op.subgroup, "slot {} has the state of subgroup {}; expected subgroup {}",
                    op.slot, slot->subgroup, op.subgroup);
      expect_version(op, slot->version, turn);
      update(stream, turn, subgroup, there, gradient, sizes_.bounces() ? compute : Tensor{});
      if (!sizes_.bounces()) stream.copy_rows(compute.data, 0, there.master().data, 0, 1, compute.bytes());
      stream.synchronize();
      slot->version = turn.number;
      break;
    }
    case OperationKind::drain:
      for (size_t i = 0; i < home.count; ++i)
        stream.copy_to_host(home.tensors[i].data, there.tensors[i].data, home.tensors[i].bytes());
      versions_[index] = slot->version;
      slot->subgroup = -1;
      poison(stream, slot->memory.tensor());
      break;
    case OperationKind::update_host:
      expect_version(op, versions_[index], turn);
      update(stream, turn, subgroup, home, on_host, bounce);
      versions_[index] = turn.number;
      poison(stream, on_host);
      break;
    case OperationKind::refresh:
      stream.copy_to_device(compute.data, bounce ? bounce.data : home.master().data, compute.bytes());
      stream.synchronize();
      if (bounce) poison(store_.home(), bounce);
      break;
  }
}

}  // namespace trainer::offload
