#pragma once
// Replicas of the model must stay equal bit for bit; a machine that computes wrongly shows here first.
#include "train/trainer.h"

namespace trainer::train {

/// Compares checksums of all weights among the replicas. Every rank calls it. Throws Code::internal on all of them,
/// naming the first rank and group of parameters that differ from those of the first replica.
void check_replicas(Trainer& trainer, int64_t step);

}  // namespace trainer::train
