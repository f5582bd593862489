#pragma once
// Runs with Muon, and updates whose gradients are a formula of name and index, and so equal in every layout.
#include "optim/make.h"
#include "rigs/layouts.h"

namespace trainer::tests {

inline config::Config with_muon(config::Config c) {
  c.optim.name = config::OptimizerName::muon;
  c.muon = {.momentum = 0.95, .nesterov = true, .steps = 5, .lr_ratio = 1, .weight_decay = 0.1};
  return c;
}

/// Adds the elements that a rank stores. Ranks that store the same element must agree.
inline void merge(Tensors& all, const checkpoint::TensorSlice& slice) {
  std::vector<double>& out = all[slice.name];
  out.resize(static_cast<size_t>(slice.shape.count()), NAN);
  for (const mesh::Run& r : slice.runs)
    for (int64_t i = 0; i < r.length; ++i) {
      const int64_t at = r.local + i * r.stride;
      const double value = slice.local.dtype == DType::f64   ? slice.local.as<double>()[at]
                           : slice.local.dtype == DType::f32 ? static_cast<double>(slice.local.as<float>()[at])
                                                             : static_cast<double>(slice.local.as<bf16>()[at]);
      double& known = out[static_cast<size_t>(r.global + i)];
      if (std::isnan(known)) known = value;
      ASSERT_EQ(value, known) << slice.name << "[" << r.global + i << "]";
    }
}

/// Updates the weights of a new trainer on this rank, then adds its weights, optimizer states and compute weights to
/// `all`.
inline void update_by_formula(comm::World* world, config::Config c, DType compute, int64_t updates, Tensors& all,
                              std::mutex& mutex) {
  c.train.global_batch *= 2;  // two micro-batches, so that gradients have memory of their own
  Tiny run(world, c, compute, 1);
  params::ParamStore& store = run.trainer.store();
  const optim::Rules rules = optim::make_rules(run.trainer.config(), compute);
  const std::unique_ptr<optim::Optimizer> optimizer = optim::make_optimizer(store, rules);
  Arena heap(run.device, Arena::Mode::heap);
  Meter meter;
  Exec ex{run.device, heap, meter};
  for (int64_t t = 1; t <= updates; ++t) {
    for (const params::Param& param : store.params()) {
      const Tensor grad = store.groups()[static_cast<size_t>(param.group)].grad;
      const PhiloxKey key = philox_key(static_cast<uint64_t>(t), param.name);
      for (const mesh::Run& r : param.runs)
        for (int64_t i = 0; i < r.length; ++i) {
          const uint32_t draw = philox_at(key, static_cast<uint64_t>(r.global + i));
          const double value = (static_cast<double>(draw % 2001) - 1000) * 1e-4;
          const int64_t at = r.local + i * r.stride;
          grad.dtype == DType::f64 ? grad.as<double>()[at] = value : grad.as<float>()[at] = static_cast<float>(value);
        }
    }
    optimizer->step(ex, optim::make_update(rules, 1e-2, t, t % 2 == 0 ? 0.7 : 1.0));
  }
  const std::lock_guard lock(mutex);
  for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_fill(store, true)) merge(all, slice);
  for (const params::Param& param : store.params()) {
    const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
    if (group.compute) merge(all, {param.name + " compute", param.shape, group.compute.tensor(), param.runs, nullptr});
  }
}

}  // namespace trainer::tests
