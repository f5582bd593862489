#pragma once
// Loading: from a file and `--set section.key=value` texts to a validated configuration.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace trainer::config {

struct LoadOptions {
  /// The number of ranks that were started together; empty: not checked against a world.
  std::optional<int64_t> world = {};
  /// Requires data.train, and that every file named exists. Off if only the model matters (a checkpoint's own copy).
  bool files = true;
  /// The value of checkpoint.resume given by --resume; empty: not given.
  std::string resume = {};
  /// The planner has yet to choose the layout, so none of its rules is checked.
  bool plans = false;
  /// Returns the values of keys, as in --set, that follow from the model in model.init_from. They hold unless the
  /// user gives others. Empty: the model's shape comes from the configuration only.
  std::function<std::vector<std::string>(const std::string& init_from)> settings_of = {};
};

constexpr const char* kStandardInput = "-";
/// Reads the text of a configuration file, or of standard input for "-". Throws Code::config when it cannot be read.
std::string read_text(const std::string& path);
/// Returns the name of that file in messages, from which the run's name is derived as well: "stdin" for standard input.
std::string name_of(const std::string& path);

/// Reads, resolves and validates. Throws one Error whose message has a line for every error, `FILE:LINE:COL:
/// section.key: what is wrong`. Its code is Code::config, or Code::data / Code::checkpoint when only files of that kind
/// are missing. Keys without effect (those of a different strategy) cause a single warning.
Config load(const std::string& path, const std::vector<std::string>& sets = {}, const LoadOptions& options = {});

/// Loads from text; `origin` names it in messages and determines the run's default name.
Config load_text(std::string_view text, const std::string& origin, const std::vector<std::string>& sets = {},
                 const LoadOptions& options = {});

}  // namespace trainer::config
