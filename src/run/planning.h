#pragma once
// Planning of a run before it allocates memory: stopping it by a signal, and the log line if it takes long.
#include <cstdint>
#include <optional>
#include <thread>

#include "run/signals.h"
#include "setup/run_plan.h"

namespace trainer::run {

/// Watches the planning of a model of `layers` layers on this rank. After two seconds rank 0 logs one line. A stop ends
/// the process immediately if no other process waits for it. Ranks that are processes finish planning and then stop
/// together.
class PlanningWatch {
 public:
  PlanningWatch(const comm::World& world, int64_t layers);

 private:
  std::optional<StopsAtOnce> at_once_;
  std::jthread teller_;
};

/// Plans a training run. All ranks reject it when it does not fit on one of them (require_memory()), since memory may
/// be short on one host only. Returns an empty result when a signal requests a stop on any rank, which is logged.
/// Collective.
std::optional<setup::RunPlan> plan_together(comm::World& world, const config::Config& config, int64_t vocab,
                                            const setup::Machine& machine);

}  // namespace trainer::run
