#pragma once
// A trained model loaded from a checkpoint only, for evaluation and generation: the step folder contains the
// configuration and the tokenizer.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "checkpoint/reader.h"
#include "data/tokenizer.h"
#include "setup/machine.h"
#include "train/model_runner.h"

namespace trainer::run {

struct LoadedModel {
  config::Config config;
  std::filesystem::path folder;  // the step folder
  int64_t step = 0;
  std::optional<data::Tokenizer> tokenizer;
  std::string val_hash;
  setup::Machine machine;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<comm::World> gpu_world;      // for communication between GPUs; null: use the ranks' world
  std::unique_ptr<train::ModelRunner> runner;  // weights only
};

/// Returns the candidate layouts for a number of ranks (config/layout_choices.h). The first layout that fits in the
/// memory of all ranks is used.
using Layouts = std::function<std::vector<config::Parallel>(const config::Config&, int)>;

/// Loads `path`: a step folder, or the newest intact checkpoint of a `checkpoints` or run folder. Warns about each
/// skipped checkpoint. The compute type is that of training. `sets` ("run.threads=1") override keys of the checkpoint's
/// configuration. Throws Code::checkpoint if the checkpoint cannot be read, Code::plan if the model does not fit in
/// memory.
LoadedModel load_model(comm::World& world, const std::filesystem::path& path, const Layouts& layouts,
                       const std::vector<std::string>& sets = {});

}  // namespace trainer::run
