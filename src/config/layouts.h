#pragma once
// All layouts of a model on a number of ranks, as configurations.
#include <string>
#include <vector>

#include "config/config.h"

namespace trainer::config {

/// Whether the configuration's file or command line gives a key ("parallel.data").
bool is_given(const Config& config, const char* key);

/// Returns every legal combination of data and micro_batch for `devices` ranks, with parallel.data set; and strategies
/// and their extents. Given keys keep their values. `broken` receives the rule that a layout breaks, of the first that
/// breaks one, for the message when there is none. Layouts of "autoddl" are left to the search, unless tables are
/// given: for it there is one configuration for each number of ranks of a replica, with strategy "autoddl" and no
/// tables.
std::vector<Config> enumerate_layouts(const Config& config, int64_t devices, std::string& broken);

/// Returns the nearest smaller and the nearest larger number of devices that have a layout, of those within a sixteenth
/// (64 at least, 4096 at most). Layouts by tags do not count, unless tables are given.
std::vector<int64_t> nearest_device_counts(Config config, int64_t devices);

/// Returns lists of extents with this product: one, two or three axes of more than one rank.
std::vector<std::vector<int64_t>> axis_lists(int64_t ranks, int64_t devices_per_node);

/// Returns this layout with its ranks in other places where replicas span nodes (parallel.order, parallel.node_tile),
/// and with all gathered matrices kept (parallel.cache_layers). Keys that are given stay.
std::vector<Config> variants(const Config& config, int64_t devices_per_node);

/// Whether strategy "auto" leaves the choice to the planner.
bool is_automatic(const Config& config);
/// Whether its layout is given by tags (config/tags.h).
bool has_tags(const Config& config);
/// Whether this is strategy "autoddl" without tables: its layout is to be searched.
bool wants_tags(const Config& config);

/// Sets the keys of all other strategies to what they are when absent.
void drop_other_strategies(Config& config);

/// "none", "selective" or "full"
std::string recompute_text(const Config& config);
/// "tensor 4, data 2", "grid 2 x 2 x 1, data 4"
std::string layout_text(const Config& config);

}  // namespace trainer::config
