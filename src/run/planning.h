#pragma once
// Planning comes before a run takes memory: how a signal ends it, and what is logged when it takes long.
#include <cstdint>
#include <optional>
#include <thread>

#include "run/signals.h"
#include "setup/run_plan.h"

namespace trainer::run {

/// PlanningWatch lives while a model of so many layers is planned on this rank. After two seconds the first rank logs
/// one line. A stop ends a process at once when no other process waits for it. Ranks that are
/// processes plan to the end and stop together then.
class PlanningWatch {
 public:
  PlanningWatch(const comm::World& world, int64_t layers);

 private:
  std::optional<StopsAtOnce> at_once_;
  std::jthread teller_;
};

/// Plans a training run. All ranks refuse it when it does not fit one of them (require_memory()), since memory may be
/// short on one host only. Returns none when a signal asks a rank to stop, which is logged. Collective.
std::optional<setup::RunPlan> plan_together(comm::World& world, const config::Config& config, int64_t vocab,
                                            const setup::Machine& machine);

}  // namespace trainer::run
