#pragma once
// Elements that several ranks hold must stay bitwise identical. If they do not, a machine computes wrong results.
#include "train/trainer.h"

namespace trainer::train {

/// Compares fingerprints of every parameter, by name, between the ranks that hold the same elements, across and within
/// replicas; and, every debug.check_replicas_every steps, of the experts that the last step chose, between the ranks
/// that have the same rows. Collective. Throws Code::difference on all ranks, naming the first rank that differs from
/// an earlier rank, and its first parameter, or layer, that does.
void check_replicas(Trainer& trainer, int64_t step);

}  // namespace trainer::train
