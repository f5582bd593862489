#pragma once
// Checks that a model's weights are finite: in a divergence the losses become non-finite first, then the weights.
#include "train/trainer.h"

namespace trainer::train {

/// Returns true on all ranks if every weight is finite. Takes one pass over the master weights. Collective.
bool weights_are_finite(Trainer& trainer);

}  // namespace trainer::train
