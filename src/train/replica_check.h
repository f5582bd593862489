#pragma once
// Elements that several ranks hold must stay bitwise identical. If they do not, a machine computes wrong results.
#include "train/trainer.h"

namespace trainer::train {

/// Compares checksums of every parameter between the ranks that hold the same elements, across and within replicas.
/// Collective. Throws Code::internal on all ranks, naming the first parameter and rank that differ from an earlier
/// rank.
void check_replicas(Trainer& trainer, int64_t step);

}  // namespace trainer::train
