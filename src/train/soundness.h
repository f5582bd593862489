#pragma once
// Whether a model is one that training made: after a divergence its losses, then its weights, are not finite.
#include <filesystem>

#include "train/trainer.h"

namespace trainer::train {

/// Whether every weight is finite, on all ranks. One pass over the master weights; every rank calls it.
bool weights_are_finite(Trainer& trainer);

/// What to resume from after a divergence, for its message: the newest checkpoint in the folder from before it.
std::string suggest_resume(const std::filesystem::path& checkpoints);

}  // namespace trainer::train
