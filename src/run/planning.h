#pragma once
// Planning of a run before it allocates memory. Planning can be stopped with a signal, and is logged if it is slow.
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "run/signals.h"
#include "setup/run_plan.h"

namespace trainer::run {

/// Watches the planning of a model with `layers` layers on this rank. After two seconds rank 0 logs one line. A stop
/// signal ends the process immediately if no other process waits for this one; ranks that are processes finish planning
/// and then stop together.
class PlanningWatch {
 public:
  PlanningWatch(const comm::World& world, int64_t layers);

 private:
  std::optional<StopsAtOnce> at_once_;
  std::jthread teller_;
};

/// Plans a run with each of the layouts in turn until one fits in the memory of every rank. Sets config.parallel to
/// that layout, or to the last one if none fits, and returns its plan. `plan` returns the plan of `config`. Collective.
setup::RunPlan plan_first_that_fits(comm::World& world, const std::vector<config::Parallel>& layouts,
                                    config::Config& config, const setup::Machine& machine,
                                    const std::function<setup::RunPlan()>& plan);
/// Plans a training run, and sets what parallel.vocab_axes and parallel.panels leave to the program: the choice that
/// sends fewer bytes (config::choose_vocab_axes()), and the first of config::choices_by_memory() that fits. Clears
/// optim.overlap on ranks where gradients do not fit in memory of their own, before it takes the next choice.
setup::RunPlan plan_training(comm::World& world, config::Config& config, int64_t vocab, const setup::Machine& machine);

/// Plans a training run as plan_training() does. If the run does not fit on one rank (require_memory()), all ranks
/// throw, since memory may be short on one host only. If a signal requests a stop on any rank, logs it and returns an
/// empty result. Collective.
std::optional<setup::RunPlan> plan_together(comm::World& world, config::Config& config, int64_t vocab,
                                            const setup::Machine& machine);

}  // namespace trainer::run
