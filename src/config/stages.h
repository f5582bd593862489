#pragma once
// The keys of pipeline stages: what they allow, and the choices that are left.
#include <cstdint>
#include <vector>

#include "config/config.h"
#include "config/layouts.h"

namespace trainer::config {

/// The keys of [parallel] that describe stages; each is chosen for given values of those before.
inline constexpr const char* kKeysOfStages[] = {"stages", "chunks", "pipeline_schedule", "stage_layers"};

/// Adds the errors in these keys.
void check_stages(const Config& config, std::vector<BrokenRule>& broken);

/// Returns the numbers of stages to enumerate on a number of devices.
std::vector<int64_t> stage_counts(const Config& config, int64_t devices);
/// Returns the same layout with 2, 4, 8 … chunks per stage, if there are several stages and chunks are not given.
/// Chosen layers of chunks are left open.
std::vector<Config> stage_variants(const Config& config);

/// Chooses parallel.stage_layers if it is empty and there are several stages: the largest chunk has as few FLOPs as
/// possible, recomputation and the head of `vocab` tokens included (sharding::split_layers).
void choose_stage_layers(Config& config, int64_t vocab);

}  // namespace trainer::config
