#pragma once
// A small model with the structure of a configured one.
#include "config/config.h"

namespace trainer::verify {

struct Small {
  config::Config config;
  int64_t vocab = 0;           // without padding
  bool given_choices = false;  // experts are those of given_choices() (small_run.h), not those that routers choose
};

/// Returns the configuration of the same family, layout and features with small sizes: at least two layers, at most two
/// experts for each token, and twice the smallest number of heads, feed-forward size, number and size of experts, and
/// vocabulary that the layout permits on `world` ranks. A step has
/// two micro-batches if that of `config` has several. With pipeline stages, chunks have two layers, or none as those of
/// `config`, and a step has up to two micro-batches for each stage. `config` must be resolved, with a layout that fits
/// and layers of stages that are chosen.
Small shrink(const config::Config& config, int64_t world);

/// Returns `config` with its sizes, for as many micro-batches.
Small keep_sizes(const config::Config& config, int64_t world, int64_t vocab);

/// Returns the same model and batches on one rank: no parallelism, no offload, nothing recomputed. Its micro-batches
/// have the samples of all replicas' micro-batches, so that micro-steps have the same samples.
config::Config on_one_rank(config::Config config);

}  // namespace trainer::verify
