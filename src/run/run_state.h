#pragma once
// The connection between a Trainer and the checkpoint module: how a run starts from a checkpoint.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "data/source.h"
#include "train/model_runner.h"

namespace trainer::run {

/// Returns the snapshot of a run without its tensors and state: the part that must match a checkpoint from which the
/// run resumes.
checkpoint::Snapshot snapshot_header(const config::Config& config, const data::Datasets& datasets, DType compute,
                                     const std::string& gemm_tuning_hash = {});

/// Returns only the model keys and optimizer of that snapshot, for a comparison before the data are open.
checkpoint::Snapshot model_header(const config::Config& config, int64_t vocab);

/// The header of the checkpoint that resume() will load.
struct StoredHeader {
  std::filesystem::path folder;
  checkpoint::Snapshot header;
};
/// Reads the header on the calling rank, without warnings. Returns an empty result if the run starts from scratch or
/// every checkpoint that resume() may try is corrupted. Throws like resume() if a requested checkpoint is missing.
std::optional<StoredHeader> header_to_resume(const config::Checkpoint& config, const std::filesystem::path& folder);

/// The state from which a run resumes.
struct Resumed {
  std::filesystem::path folder;
  int64_t sequence = 0;
  checkpoint::TrainState state;
  // Values of the run that saved the checkpoint.
  std::string config_toml;
  std::string gemm_tuning_hash, data_hash, val_hash;
  std::vector<data::MixturePhase> phases;  // phases of that run's mixture
  bool other_steps = false;                // the training data or the batch size differ now
};
/// Loads weights, moments and state from the checkpoint that checkpoint.resume selects, and refreshes the compute
/// weights. Returns an empty result if the run starts from scratch. "auto" skips corrupted checkpoints in `folder`,
/// with a warning for each, and throws Code::checkpoint if none is intact. "must", "verified" (the newest that
/// replays confirmed) and a path select a single checkpoint, and throw if it is missing or corrupted. If the newest
/// checkpoint in `folder` was saved after a resume from the same path (checkpoint::descendants), it is resumed instead.
/// A checkpoint of a different model is always an error. `expected` contains the run's keys and hashes. Collective; all
/// ranks load the checkpoint that rank 0 finds.
std::optional<Resumed> resume(train::ModelRunner& runner, const std::filesystem::path& folder,
                              const checkpoint::Snapshot& expected);

/// Loads only the weights, for model.init_from, evaluation and generation. Returns the corruption found by any rank;
/// empty if there is none. Collective.
[[nodiscard]] std::string load_weights(train::ModelRunner& runner, const checkpoint::Reader& reader);

/// Fills a model before its first step: from a checkpoint by resume() if there is one, else from the weights of
/// model.init_from, else with random initial values. Logs the first two cases. Returns the state from which the run
/// resumes, or an empty result. Collective.
std::optional<Resumed> fill_model(train::ModelRunner& runner, const std::filesystem::path& folder,
                                  const checkpoint::Snapshot& expected);

/// Logs the changes since the resumed run was saved, and sets resumed.other_steps; warns if its configuration is not
/// valid TOML.
void log_changes(Resumed& resumed, const checkpoint::Snapshot& present);

}  // namespace trainer::run
