#pragma once
// Values that follow from others.
#include <string>
#include <vector>

#include "config/config.h"

namespace trainer::config {

/// Fills in keys that were not given: run.name and {name} in paths, n_kv_head, d_ff, tie_embeddings, bias,
/// val_fraction, steps, min_lr, warmup_steps. A second call changes nothing.
void resolve(Config& config);

/// Returns all lists of data files, to change their paths.
std::vector<std::vector<std::string>*> file_lists(Data& data);
/// Returns [data] for the files of one of its tables, as data.train, and with its settings.
Data data_of(const Data& data, const FileSet& set);
/// Returns the names of the validation sets; none where the only set has no name.
std::vector<std::string> validation_names(const Data& data);
/// Returns the index of the validation set that checkpoint.best names; 0 if it names none.
size_t followed_set(const Config& config);

/// Returns the smallest number of ranks for the configuration; the only one if parallel.data is set.
int64_t fewest_ranks(const Config& config);
/// Returns the number of ranks that run `config` when `launched` processes were started: the same number, or, with
/// ranks as threads, that of the configuration.
int64_t world_size(const Config& config, int64_t launched);
/// Fills in parallel.data for a world of this size.
void resolve_world(Config& config, int64_t world);

}  // namespace trainer::config
