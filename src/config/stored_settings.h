#pragma once
// The settings of a run's model, from the copy of its configuration in a checkpoint.
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace trainer::config {

struct StoredSettings {
  std::string file;                   // the config.toml in the checkpoint
  std::vector<std::string> settings;  // in the form of --set: the keys of [model] except dropout, and data.vocab_size
};
/// Returns the settings of the model in the newest checkpoint of a resolved configuration, from which a run resumes
/// without the weights from which it started. Empty if the run does not resume, or has no checkpoint with a valid
/// config.toml. Dropout is a choice of training, not of the model.
std::optional<StoredSettings> model_settings_of_run(const Config& config);

}  // namespace trainer::config
