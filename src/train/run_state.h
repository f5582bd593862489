#pragma once
// Between a Trainer and the checkpoint module: how a run begins from a checkpoint.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "train/trainer.h"

namespace trainer::train {

/// What must agree between a run and a checkpoint it resumes from.
std::map<std::string, std::string> model_keys(const config::Model& model, int64_t vocab);

/// Where to resume from by checkpoint.resume: nothing (start fresh), or a step folder. Throws Code::checkpoint when
/// "must" finds none.
std::optional<std::filesystem::path> find_resume(const config::Checkpoint& checkpoint, const std::filesystem::path& folder);

/// Loads weights, moments and state; compute weights are refreshed. `expected` holds the run's keys and hashes.
checkpoint::TrainState restore(Trainer& trainer, const checkpoint::Reader& reader, const checkpoint::Snapshot& expected);

/// Weights only: model.init_from, evaluation, generation.
void load_weights(Trainer& trainer, const checkpoint::Reader& reader);

/// Changed keys of a resumed run, for one notice: "optim.lr: 0.0006 -> 0.0003".
std::vector<std::string> changed_lines(const std::string& stored_toml, const std::string& present_toml);

}  // namespace trainer::train
