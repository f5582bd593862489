#pragma once
// Rows of the table of strategies and functions that several strategies use, for strategies*.cpp only.
#include "config/strategies.h"

namespace trainer::config {

extern const NamedStrategy kOptimus, kAxonn;  // strategies_mesh.cpp

using Visit = std::function<void(const Parallel&)>;

/// Returns a sharding over the replicas and these axes, outermost first.
sharding::ModelSharding over(const Config& config, std::vector<sharding::Axis> axes);
/// Shards all layers of the model like `layer`.
void cut_all(sharding::ModelSharding& s, const Config& config, sharding::Layer layer);
/// Returns "1, 2 or 4".
std::string one_of(const std::vector<int64_t>& values);
/// Returns the schedule that a setting of a key selects; automatic: not chosen yet (choices_by_memory), so as gather.
inline sharding::Transfer schedule_of(Panels panels) {
  return panels == Panels::ring ? sharding::Transfer::ring : sharding::Transfer::at_once;
}
/// Keeps the gathered weights of the first parallel.cache_layers, and the gathered tables if that is above 0.
sharding::ModelSharding keeping(sharding::ModelSharding s, const Config& config);
/// Requires a list whose number of extents is in [least, most].
void check_size(const char* key, const std::vector<int64_t>& extents, size_t least, size_t most, const char* form,
                std::vector<BrokenRule>& broken);
/// NamedStrategy::variants. If weights are gathered, visits the setting that keeps them in all layers
/// (parallel.cache_layers = n_layer); if ranks share sequences, all numbers of them that exchange heads, and both ways
/// to exchange keys and values.
void common_variants(const Config& config, int64_t devices_per_node, const Visit& visit);
/// Returns the ranks that share each sequence in layouts whose rows are split over `ranks` ranks: parallel.context, or,
/// if that is 0, the fewest with which each rank has rows of `sequences`; 1 if they would not split sequences well.
/// Sharing sequences among more is never faster.
int64_t searched_context(const Config& config, int64_t ranks, int64_t sequences);

}  // namespace trainer::config
