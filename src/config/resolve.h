#pragma once
// Values that are derived from other values.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/config.h"

namespace trainer::config {

/// Replaces {name} in paths, copies the facts of the model's family into model.family, and fills in keys that were not
/// set: run.name, n_kv_head, d_ff of models without experts, tie_embeddings, bias, val_fraction, separate_documents,
/// steps, balance_loss, task_interval, min_lr, warmup_steps. A second call changes nothing.
void resolve(Config& config);

/// Returns checkpoint.dir, or RUN_DIR/checkpoints.
std::filesystem::path checkpoint_folder(const Config& config);

/// Returns the type that a value of precision.compute or muon.compute names; empty for "auto".
std::optional<DType> type_of(Compute compute);

/// Returns all lists of data files, so that callers can change the paths.
std::vector<std::vector<std::string>*> file_lists(Data& data);
/// Returns a copy of [data] with the files of one of its tables as data.train, and with that table's settings.
Data data_of(const Data& data, const FileSet& set);
/// True if documents of these files are packed into windows.
bool is_packed(const Data& data);
/// True if some training files are conversations.
bool has_conversations(const Data& data);
/// Returns the names of the validation sets; an empty list if the only set has no name.
std::vector<std::string> validation_names(const Data& data);
/// Returns the index of the validation set that checkpoint.best names; 0 if it names none.
size_t followed_set(const Config& config);

/// Returns the smallest number of ranks that can run the configuration; if parallel.data is set, no other number can.
int64_t fewest_ranks(const Config& config);
/// Returns the number of ranks that run `config` when `launched` processes were started: `launched`, or, if ranks are
/// threads of a single process, fewest_ranks().
int64_t world_size(const Config& config, int64_t launched);
/// Fills in parallel.shards for a world of this size, if the strategy uses it: all ranks of a replica.
void resolve_shards(Config& config, int64_t world);
/// Fills in parallel.data for a world of this size.
void resolve_world(Config& config, int64_t world);

}  // namespace trainer::config
