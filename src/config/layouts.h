#pragma once
// The layouts of a model on a number of ranks, as configurations: checks whether a layout fits, and finds the nearest
// layout that fits or all layouts.
#include <string>
#include <vector>

#include "config/strategies.h"

namespace trainer::config {

/// Return the number of ranks that share one replica of the model, and one stage of it: the product of the strategy's
/// own axes.
int64_t ranks_of_replica(const Config& config);
int64_t ranks_of_stage(const Config& config);
/// Returns the number of ranks that divide the experts of a layer; 1: none do. The layout must fit.
int64_t expert_ranks(const Config& config);
/// Return the key that determines ranks_of_stage() ("parallel.mesh"), and the same with its value: "mesh = [2, 2]",
/// with several stages "stages = 4 x mesh = [2, 2]".
const char* replica_key(const Config& config);
std::string replica_text(const Config& config);

/// Returns the rules that a resolved configuration breaks, in the order of messages, each with the nearest setting that
/// breaks no rule.
std::vector<BrokenRule> broken_rules(const Config& config);
/// True if the configured strategy fits the model and the batch.
bool layout_fits(const Config& config);

/// Returns the sharding of a run on `world` ranks, with the axes of its mesh. Throws Code::config with the first broken
/// rule.
sharding::ModelSharding sharding_on(const Config& config, int64_t world);

/// True if the configuration file or the command line sets `key` ("parallel.data").
bool is_given(const Config& config, const char* key);

/// Returns every legal combination of stages, strategy, extents, data and micro_batch for `devices` ranks, with
/// parallel.data set. Unless stages are given, there are at least as many micro-batches as stages. Keys that the user
/// set keep their values. `broken` receives a rule that a rejected layout breaks, for the message if no layout is
/// found. Unless tables are given, the layouts of autoddl are left to the search: the result has one configuration
/// without tables for each number of ranks per stage.
std::vector<Config> enumerate_layouts(const Config& config, int64_t devices, std::string& broken);

/// Returns the nearest smaller and the nearest larger number of devices for which there is a layout. They differ from
/// `devices` by at most a sixteenth (but no less than 64 and no more than 4096), and are found within two seconds.
/// Layouts of autoddl count only if tables are given.
std::vector<int64_t> nearest_device_counts(Config config, int64_t devices);
/// Returns the batches near the configured ones for which `devices` devices have a layout: "global_batch = 24 or 32",
/// "micro_batch = 2 or 4" if that key is given; empty if there are none.
std::vector<std::string> nearest_batches(const Config& config, int64_t devices);

/// Returns variants of this layout: other rank placements if replicas span nodes, and gathered weights kept in all
/// layers. Keys that the user set keep their values.
std::vector<Config> variants(const Config& config, int64_t devices_per_node);

/// True if strategy "auto" leaves the choice to the planner.
bool is_automatic(const Config& config);
/// True if the layout is given by tables (config/sharding_spec.h).
bool has_spec(const Config& config);
/// True if the layout is to be given by tables and the planner must search for them.
bool needs_spec(const Config& config);

/// Resets the keys of all other strategies to their defaults.
void drop_other_strategies(Config& config);

/// Returns "tensor 4, data 2", "4 stages (1f1b), grid 2 x 2 x 1, data 4".
std::string layout_text(const Config& config);

}  // namespace trainer::config
