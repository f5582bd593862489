#pragma once
// A run is planned before anything of it is there: how that can be ended, and what is said when it takes long.
#include <cstdint>
#include <optional>
#include <thread>

#include "plan/run_plan.h"
#include "run/signals.h"

namespace trainer::run {

/// Lives while a model of so many layers is planned on this rank. After two seconds one line says so, once in a process
/// and of the first rank. A stop ends a process that no other one waits for at once; ranks that are processes plan to
/// the end, and agree then.
class PlanningWatch {
 public:
  PlanningWatch(const comm::World& world, int64_t layers);

 private:
  std::optional<StopsAtOnce> at_once_;
  std::jthread teller_;
};

/// The plan of a training run, which all ranks refuse when it does not fit one of them (require_memory()): memory may
/// be short on one host only. None: a signal asks one of them to stop, which was said. Collective.
std::optional<plan::RunPlan> plan_together(comm::World& world, const config::Config& config, int64_t vocab,
                                           const plan::Machine& machine);

}  // namespace trainer::run
