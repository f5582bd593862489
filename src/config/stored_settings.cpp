#include "config/stored_settings.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "config/resolve.h"
#include "config/text.h"
#include "config/toml_reader.h"

namespace trainer::config {

namespace fs = std::filesystem;

std::optional<StoredSettings> model_settings_of_run(const Config& config) try {
  if (config.checkpoint.resume == "never") return {};
  fs::path newest;  // all checkpoints of a run have the same model
  std::error_code failed;
  for (const auto& step : fs::directory_iterator(checkpoint_folder(config), failed))
    if (fs::exists(step.path() / "config.toml", failed)) newest = std::max(newest, step.path());
  if (newest.empty()) return {};
  StoredSettings stored{.file = (newest / "config.toml").string(), .settings = {}};
  std::ifstream in(stored.file);
  for (const TomlNode& node : read_toml(std::string(std::istreambuf_iterator<char>(in), {})))
    if (const std::string key = node.section + "." + node.name;
        !node.name.empty() && key != "model.dropout" && (node.section == "model" || key == "data.vocab_size"))
      stored.settings.push_back(key + "=" + to_toml(node.value));
  return stored;
} catch (const TomlMistake&) {
  return {};
}

}  // namespace trainer::config
