#pragma once
// Whether a model is one that training made: after a divergence its losses, then its weights, are not finite.
#include "train/trainer.h"

namespace trainer::train {

/// Whether every weight is finite, on all ranks. One pass over the master weights; every rank calls it.
bool weights_are_finite(Trainer& trainer);

}  // namespace trainer::train
