#pragma once
// Elements that several ranks hold must stay bitwise identical. This check is the first to detect a machine that
// computes incorrectly.
#include "train/trainer.h"

namespace trainer::train {

/// Compares checksums of every parameter among the ranks that hold the same elements: replicas of the model, and ranks
/// of one replica. Every rank calls it. Throws Code::internal on all ranks, naming the first parameter and rank that
/// differ from an earlier rank.
void check_replicas(Trainer& trainer, int64_t step);

}  // namespace trainer::train
