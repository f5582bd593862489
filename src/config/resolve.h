#pragma once
// Values that follow from others.
#include "config/config.h"

namespace trainer::config {

/// Fills in what was not given: run.name and {name} in run.dir, n_kv_head, d_ff, tie_embeddings, bias, val_fraction,
/// steps, min_lr, warmup_steps. Doing it twice changes nothing.
void resolve(Config& config);

}  // namespace trainer::config
