// The checks of a training loop between steps: replays, and the comparison of the ranks' times.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ops/gemm.h"
#include "run/divergence.h"
#include "run/training_loop.h"
#include "train/replica_check.h"

namespace trainer::run {

void TrainingLoop::prepare_replays() {
  if (config_.debug.replay_every == 0) return;
  const setup::Machine& machine = open_.machine;
  replay_.emplace(trainer_, ops::product_path(*setup::make_dry_device(machine), machine.compute) + " on " +
                                setup::device_text(machine));
  if (!replay_->obstacle().empty()) {
    reporter_.warn(state_.step, format("debug.replay_every is ignored, since replicas round differently: {}; use equal "
                                       "machines",
                                       replay_->obstacle()));
    replay_.reset();
  } else if (trainer_.replicas() == 1 && world_.first()) {
    log::info(
        "debug.replay_every: with one replica, ranks repeat their own micro-batch, which finds transient faults only; "
        "with parallel.data > 1, for fsdp hybrid sharding, replicas check each other");
  }
}

void TrainingLoop::replay_if_due(const train::StepWork& work) {
  if (!replay_ || (has_replayed_ && work.step % config_.debug.replay_every != 0)) return;
  const TraceScope traced(trainer_.meter().trace, "replay", work.step);
  const bool is_first = !std::exchange(has_replayed_, true);
  const std::string difference = replay_->check(work, batches_);
  if (difference.empty()) {
    state_.verified_step = work.step;
    return;
  }
  if (is_first) {
    replay_.reset();
    return reporter_.warn(
        state_.step, format("step {}: debug.replay_every is switched off, since the first replay differs: {}. Either "
                            "replicas round differently (other GPUs or libraries, other algorithms of NCCL) or a "
                            "machine computes wrong results; `trainer verify` finds out which",
                            work.step, difference));
  }
  const std::string message = format("step {}: {}", work.step, difference);
  reporter_.warn(state_.step, message);
  if (config_.debug.replay_action == config::ReplayAction::warn) return;
  end_save();
  reporter_.end(state_, "ended because replicas computed different results", trainer_);
  throw Error(Code::difference,
              format("{}; {}", message, suggest_verified(store_.folder(), state_.verified_step, state_.origin)))
      .on(Scope::all_ranks);
}

void TrainingLoop::check_replicas_if_due() {
  if (!is_due(config_.debug.check_replicas_every)) return;
  try {
    train::check_replicas(trainer_, state_.step);
  } catch (const Error& error) {
    if (error.code() == Code::difference) end_save();  // all ranks found it
    throw;
  }
}

void TrainingLoop::compare_ranks_if_due() {
  if (!is_due(config_.log.ranks_every)) return;
  const std::optional<report::RanksReport> ranks = slow_ranks_.compare(state_.step);
  if (!ranks) return;
  reporter_.ranks(*ranks);
  for (const std::string& warning : slow_ranks_.warnings()) reporter_.warn(state_.step, warning);
}

}  // namespace trainer::run
