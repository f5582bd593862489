#pragma once
// A trained model loaded from only a checkpoint (its step folder holds config and tokenizer), for evaluation and
// generation.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "checkpoint/reader.h"
#include "data/tokenizer.h"
#include "setup/machine.h"
#include "train/trainer.h"

namespace trainer::run {

struct LoadedModel {
  config::Config config;
  std::filesystem::path folder;  // the step folder
  int64_t step = 0;
  std::optional<data::Tokenizer> tokenizer;
  std::string tokenizer_hash, val_hash;
  setup::Machine machine;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<comm::World> gpu_world;   // carries tensors between GPUs; null: the world of the ranks does
  std::unique_ptr<train::Trainer> trainer;  // weights only
};

/// Returns the layouts for a number of ranks: config::replica_layouts, config::generation_layouts. The first that fits
/// into the memory of all ranks is used.
using Layouts = std::function<std::vector<config::Parallel>(const config::Config&, int)>;

/// Loads `path`: a step folder, or the newest intact checkpoint of a `checkpoints` or run folder. Warns about each
/// skipped checkpoint. `threads` 0: all that the machine has. The compute type is that of training. `sets`
/// ("run.threads=1") override keys of the checkpoint's configuration. Throws Code::checkpoint when the checkpoint
/// cannot be read, Code::plan when the model does not fit.
LoadedModel load_model(comm::World& world, const std::filesystem::path& path, const Layouts& layouts, int threads = 0,
                       const std::vector<std::string>& sets = {});

}  // namespace trainer::run
