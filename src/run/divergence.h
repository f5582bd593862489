#pragma once
// A checkpoint that was saved after the weights exploded is intact and finite, yet no run resumes from it successfully.
// Only the step after a checkpoint proves it.
#include <filesystem>
#include <string>

#include "checkpoint/snapshot.h"

namespace trainer::run {

/// True if a step with this loss proves the checkpoint that was saved just before it: the loss is finite, near the
/// previous one, and not far above that of a uniform guess, unlike the losses of exploded weights.
bool proves(double loss, const checkpoint::TrainState& saved, int64_t vocab);

/// Returns the advice for a run with these checkpoints that diverged: the proven checkpoint, or the newest remaining
/// one that a later checkpoint records as proven. `proven` is empty if there was none.
std::string suggest_resume(const std::filesystem::path& proven, const std::filesystem::path& checkpoints);

}  // namespace trainer::run
