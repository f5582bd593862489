#pragma once
// Ways to keep the optimizer's state on the host. All of them give bitwise identical results.
#include "rigs/layouts.h"

namespace trainer::tests {

/// Plans whose subgroups are so small that a tiny model has dozens of them.
inline const config::Offload kOffloadPlans[] = {
    {.optimizer = config::OffloadOptimizer::cpu, .subgroup = 1024},
    {.optimizer = config::OffloadOptimizer::interleaved, .gpu_fraction = "1/2", .subgroup = 512, .slots = 2},
    {.optimizer = config::OffloadOptimizer::interleaved, .gpu_fraction = "1", .subgroup = 256, .slots = 1},
    {.optimizer = config::OffloadOptimizer::interleaved,
     .gpu_fraction = "0.7",
     .subgroup = 777,
     .slots = 3,
     .resident = 2},
    {.optimizer = config::OffloadOptimizer::interleaved, .gpu_fraction = "0", .subgroup = 512, .resident = 5},
};

inline config::Config offloaded(config::Config c, const config::Offload& offload) {
  c.offload = offload;
  return c;
}

/// Expects a run of `c` to have the same bits with every plan. The gradients' transport type, which affects results, is
/// that of `c`.
inline void expect_bits_with_every_plan(const Result& expected, const config::Config& c, DType compute, int64_t steps,
                                        const HowToRun& how = {}) {
  for (config::Offload plan : kOffloadPlans) {
    SCOPED_TRACE(format("plan \"{}\", {}", plan.gpu_fraction, name_of(compute)));
    plan.grad_transport = c.offload.grad_transport;
    expect_same_bits(train(offloaded(c, plan), compute, steps, how), expected);
  }
}

}  // namespace trainer::tests
