#pragma once
// A checkpoint that was saved after the weights exploded may be intact and finite, yet no run can resume from it
// successfully. A checkpoint is proven only by a normal loss in the step that follows it.
#include <filesystem>
#include <string>

#include "checkpoint/snapshot.h"

namespace trainer::run {

/// True if a step with this loss proves the checkpoint that was saved just before the step: the loss is not far above
/// the previous loss and that of a uniform guess, unlike the losses of exploded weights.
bool proves(double loss, const checkpoint::TrainState& saved, int64_t vocab);

/// Returns the advice for a diverged run with these checkpoints: resume from the proven checkpoint, or from the newest
/// remaining checkpoint that a later one records as proven. `proven` is empty if no checkpoint was proven.
std::string suggest_resume(const std::filesystem::path& proven, const std::filesystem::path& checkpoints);

/// Returns the advice for a run whose state has this origin and whose replays agreed up to `verified_step`, if a later
/// one differs: resume from the newest checkpoint of its history up to that step.
std::string suggest_verified(const std::filesystem::path& checkpoints, int64_t verified_step, int64_t origin);

}  // namespace trainer::run
