#pragma once
// A store of uneven groups whose gradients are functions of step and index, and its optimizer: with an Engine of any
// placement, or without offload.
#include <memory>
#include <vector>

#include "base/philox.h"
#include "offload/engine.h"
#include "optim/elementwise.h"
#include "optim/make.h"

namespace trainer::offload {

using config::Fraction;
using params::Init;

inline constexpr config::Optim kOptim{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

/// Three groups of odd sizes, with matrices (which decay) and vectors (which do not), alternating.
inline void declare(params::ParamStore& store) {
  const int embedding = store.add_group("embedding"), block = store.add_group("block"), head = store.add_group("head");
  const Init normal{Init::Kind::normal, 0.02}, ones{Init::Kind::ones, 0};
  store.add_slot(embedding, {{"wte", store.replicated({61, 13}), normal}});
  store.add_slot(block, {{"w1", store.replicated({13, 29}), normal}});
  store.add_slot(block, {{"b1", store.replicated({29}), normal}});
  store.add_slot(block, {{"w2", store.replicated({29, 13}), normal}});
  store.add_slot(head, {{"gain", store.replicated({13}), ones}});
}

/// A store and its optimizer; gradients depend only on step and position.
struct Rig {
  explicit Rig(DType compute, int threads = 2, config::Moments moments = config::Moments::fp32)
      : device(threads), host(device::make_host(device)), store(device, compute) {
    settings.moments = moments;
    declare(store);
  }
  void use_adamw(bool round_gradients) {
    rules.push_back(
        optim::elementwise_rule({.optim = settings, .round_gradients = round_gradients}, store.state_dtype()));
    optim::keep_states(store, rules);
  }
  void without_offload(bool round_gradients = false) {
    use_adamw(round_gradients);
    store.allocate(true);
    optimizer = optim::make_optimizer(store, rules);
    store.initialize(5);
  }
  void with_offload(Placement placement, const Engine::Options& options) {
    store.keep_state_on(*host);
    use_adamw(options.round_gradients);
    store.allocate(true);
    if (placement.device_share.num == 0) placement.slots = 0;
    auto made = std::make_unique<Engine>(store, *rules[0]->elementwise(), placement, options);
    engine = made.get();
    optimizer = std::move(made);
    store.initialize(5);
  }

  void fill_gradients(int64_t step) {
    for (size_t g = 0; g < store.groups().size(); ++g) {
      const PhiloxKey key = philox_key(static_cast<uint64_t>(step), store.groups()[g].name);
      const Tensor grad = store.groups()[g].grad;
      for (int64_t i = 0; i < grad.count(); ++i) {
        const double value = (static_cast<double>(philox_at(key, static_cast<uint64_t>(i)) % 2001) - 1000) * 1e-4;
        if (grad.dtype == DType::f64) {
          grad.as<double>()[i] = value;
        } else {
          grad.as<float>()[i] = static_cast<float>(value);
        }
      }
    }
  }
  void begin(int64_t step) {
    optimizer->begin_step();
    for (const params::Group& group : store.groups())  // the forward pass reads all weights
      for (const params::SlotId slot : group.slots) store.stored_weight(slot);
    fill_gradients(step);
    for (int g = static_cast<int>(store.groups().size()); g-- > 0;) optimizer->gradient_complete(ex, g);
  }
  void zero_state() {
    for (const params::Group& group : store.groups())
      for (const Buffer* buffer : {&group.master, &group.states[0].memory, &group.states[1].memory})
        std::fill_n(buffer->tensor().data, buffer->tensor().bytes(), std::byte{0});
  }
  optim::Update update(int64_t t) const {
    return optim::make_update(rules, 1e-2 / static_cast<double>(t), t, clips && t % 2 == 0 ? 0.75 : 1.0);
  }
  void step(int64_t t) {
    begin(t);
    optimizer->step(ex, update(t));
  }
  /// Returns the bytes of the compute weights, as a forward pass reads them, and of the state.
  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    const auto add = [&](const Tensor& t) { all.insert(all.end(), t.data, t.data + t.bytes()); };
    for (const params::Group& group : store.groups()) {
      store.stored_weight(group.slots.front());
      add(group.compute ? group.compute.tensor() : group.master.tensor());
    }
    store.settle();
    for (const params::Group& group : store.groups())
      for (const Buffer* buffer : {&group.master, &group.states[0].memory, &group.states[1].memory}) add(*buffer);
    return all;
  }

  device::CpuDevice device;
  std::unique_ptr<device::Device> host;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
  params::ParamStore store;
  bool clips = true;
  config::Optim settings = kOptim;
  optim::Rules rules;
  std::unique_ptr<optim::Optimizer> optimizer;
  Engine* engine = nullptr;
};

inline std::vector<std::byte> reference(DType compute, int64_t steps, bool clips = true, bool round_gradients = false,
                                        config::Moments moments = config::Moments::fp32) {
  Rig rig(compute, 2, moments);
  rig.clips = clips;
  rig.without_offload(round_gradients);
  for (int64_t t = 1; t <= steps; ++t) rig.step(t);
  return rig.bytes();
}

}  // namespace trainer::offload
