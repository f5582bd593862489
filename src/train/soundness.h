#pragma once
// Checks that a model is finite: after a divergence its losses, then its weights, are not.
#include "train/trainer.h"

namespace trainer::train {

/// Returns true if every weight is finite, on all ranks. One pass over the master weights; every rank calls it.
bool weights_are_finite(Trainer& trainer);

}  // namespace trainer::train
