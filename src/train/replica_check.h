#pragma once
// Elements that several ranks hold must stay equal bit for bit. This check detects a machine with computation errors
// first.
#include "train/trainer.h"

namespace trainer::train {

/// Compares checksums of every parameter among the ranks that hold the same elements of it: replicas of the model, and
/// ranks of one replica. Collective. Throws Code::internal on all of them, naming the first parameter and rank that
/// differ from an earlier rank.
void check_replicas(Trainer& trainer, int64_t step);

}  // namespace trainer::train
