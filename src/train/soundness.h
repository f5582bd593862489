#pragma once
// Checks that a model's weights are finite: when training diverges, the losses become non-finite first, then the
// weights.
#include "train/model_runner.h"

namespace trainer::train {

/// Returns true on all ranks if every weight is finite. Reads the master weights once. Collective.
bool weights_are_finite(ModelRunner& runner);

}  // namespace trainer::train
