#pragma once
// Checks that a model is finite: after a divergence its losses, then its weights, are not.
#include <filesystem>

#include "train/trainer.h"

namespace trainer::train {

/// Returns true if every weight is finite, on all ranks. One pass over the master weights; every rank calls it.
bool weights_are_finite(Trainer& trainer);

/// Returns for an error message the checkpoint to resume from after a divergence: the newest one in the folder from
/// before it.
std::string suggest_resume(const std::filesystem::path& checkpoints);

}  // namespace trainer::train
