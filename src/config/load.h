#pragma once
// Loads a validated configuration from a file and `--set section.key=value` texts.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace trainer::config {

struct LoadOptions {
  /// The world size; if empty, the number of ranks is not checked.
  std::optional<int64_t> world = {};
  /// Requires data.train, and that all named files exist. False if only the model matters (a checkpoint's own copy).
  bool files = true;
  /// Warns about keys without effect. False for a checkpoint's own copy, which the user cannot change.
  bool warns = true;
  /// The value of checkpoint.resume given by --resume; empty: not given.
  std::string resume = {};
  /// The planner has yet to choose the layout, so the rules for layouts are not checked.
  bool plans = false;
  /// Called with the keys that were read, before they are resolved and validated. May change them.
  std::function<void(Config&)> adjust = {};
  /// Returns the settings, in the form of --set, that follow from the model in model.init_from; keys that the user set
  /// take precedence. If it is gone, they come from the run's newest checkpoint. An empty function: the model's shape
  /// comes from the configuration only.
  std::function<std::vector<std::string>(const std::string& init_from)> settings_of = {};
};

constexpr const char* kStandardInput = "-";
/// Reads the text of a configuration file, or of standard input for "-". Throws Code::config when it cannot be read.
std::string read_text(const std::string& path);
/// Returns the name of a configuration file for messages and for the run's default name: "stdin" for standard input.
std::string name_of(const std::string& path);

/// Reads, resolves and validates. Throws one Error whose message has a line for every error, `FILE:LINE:COL:
/// section.key: what is wrong`. Its code is Code::config, or Code::data / Code::checkpoint when only files of that kind
/// are missing. Keys without effect (those of a different strategy) cause a single warning.
Config load(const std::string& path, const std::vector<std::string>& sets = {}, const LoadOptions& options = {});

/// Loads from text; `origin` names it in messages and determines the run's default name.
Config load_text(std::string_view text, const std::string& origin, const std::vector<std::string>& sets = {},
                 const LoadOptions& options = {});

}  // namespace trainer::config
