#pragma once
// Between a Trainer and the checkpoint module: how a run begins from a checkpoint.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "data/source.h"
#include "train/trainer.h"

namespace trainer::run {

/// Returns the snapshot of a run without its tensors and state: what must agree with a checkpoint it resumes from.
checkpoint::Snapshot snapshot_header(const config::Config& config, const data::Datasets& datasets, DType compute,
                                     const std::string& gemm_tuning_hash = {});

/// Returns its model part alone, for a comparison before the data are open.
checkpoint::Snapshot model_header(const config::Config& config, int64_t vocab);

/// StoredHeader is what the checkpoint says that resume() will try first, read without warnings by one rank. None: the
/// run starts fresh, or all that resume() may try is damaged. Throws like resume() where it has nothing to try.
struct StoredHeader {
  std::filesystem::path folder;
  checkpoint::Snapshot header;
};
std::optional<StoredHeader> header_to_resume(const config::Checkpoint& config, const std::filesystem::path& folder);

/// Resumed is what a run resumes from.
struct Resumed {
  std::filesystem::path folder;
  int64_t sequence = 0;
  checkpoint::TrainState state;
  // Of the run that saved it.
  std::string config_toml;
  std::optional<std::string> gemm_tuning_hash;
  std::string val_hash;
};
/// Loads weights, moments and state from where checkpoint.resume says; compute weights are refreshed. Nothing: the run
/// starts fresh. "auto" skips checkpoints of `folder` whose bytes are damaged, with a warning for each. It throws
/// Code::checkpoint when none is whole. "must" and a path mean one checkpoint, and throw when it is missing or damaged.
/// Where `folder` has a branch of the other run that the path belongs to, the branch is resumed. A checkpoint of
/// another run is always an error. `expected` holds the run's keys and hashes. Every rank calls it; all load the
/// checkpoint that the first one finds.
std::optional<Resumed> resume(train::Trainer& trainer, const std::filesystem::path& folder,
                              const checkpoint::Snapshot& expected);

/// Loads weights only: for model.init_from, evaluation and generation. Returns what is damaged in them, as some rank
/// found; empty: nothing. Every rank calls it.
[[nodiscard]] std::string load_weights(train::Trainer& trainer, const checkpoint::Reader& reader);

/// Fills a model before its first step: resume(), where a checkpoint is there; else the weights of model.init_from;
/// else initial values. Logs which of the first two. Returns what the run is resumed from. Every rank calls it.
std::optional<Resumed> fill_model(train::Trainer& trainer, const std::filesystem::path& folder,
                                  const checkpoint::Snapshot& expected);

/// Returns the changed keys of a resumed run, for one notice: "optim.lr: 0.0006 -> 0.0003".
std::vector<std::string> changed_lines(const std::string& stored_toml, const std::string& present_toml);
/// Logs what has changed since the resumed run was saved.
void log_changes(const Resumed& resumed, const checkpoint::Snapshot& present);

}  // namespace trainer::run
