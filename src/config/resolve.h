#pragma once
// Values that follow from others.
#include "config/config.h"

namespace trainer::config {

/// Fills in keys that were not given: run.name and {name} in paths, n_kv_head, d_ff, tie_embeddings, bias,
/// val_fraction, steps, min_lr, warmup_steps. A second call changes nothing.
void resolve(Config& config);

/// Returns the smallest number of ranks for the configuration; the only one if parallel.data is set.
int64_t fewest_ranks(const Config& config);
/// Returns the number of ranks that run `config` when `launched` processes were started: the same number, or, with
/// ranks as threads, that of the configuration.
int64_t world_size(const Config& config, int64_t launched);
/// Fills in parallel.data for a world of this size.
void resolve_world(Config& config, int64_t world);

}  // namespace trainer::config
