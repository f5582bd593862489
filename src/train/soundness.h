#pragma once
// Checks whether a model is finite: after a divergence first its losses and then its weights are not.
#include "train/trainer.h"

namespace trainer::train {

/// Returns true if every weight is finite, on all ranks. Takes one pass over the master weights. Collective.
bool weights_are_finite(Trainer& trainer);

}  // namespace trainer::train
