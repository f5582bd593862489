#pragma once
// Loading: from a file and `--set section.key=value` texts to a checked configuration.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace trainer::config {

struct LoadOptions {
  /// Ranks that were started together; nothing: not checked against a world.
  std::optional<int64_t> world = {};
  /// Demands data.train and that every file named exists. Off where only the model matters (a checkpoint's own copy).
  bool files = true;
  /// checkpoint.resume, as --resume gives it; empty: not given.
  std::string resume = {};
  /// The planner still chooses the layout: none of its rules is checked.
  bool plans = false;
};

constexpr const char* kStandardInput = "-";
/// Reads the text of a configuration file, or for "-" of standard input. Throws Code::config when it cannot be read.
std::string read_text(const std::string& path);
/// Returns the name of that file in messages, after which the run is named too: "stdin" for standard input.
std::string name_of(const std::string& path);

/// Reads, resolves and validates. Throws one Error whose message has a line for every mistake,
/// `FILE:LINE:COL: section.key: what is wrong`. Its code is Code::config, or Code::data / Code::checkpoint when only
/// files of that kind are missing. Keys that have no effect here (of another strategy) get one warning together.
Config load(const std::string& path, const std::vector<std::string>& sets = {}, const LoadOptions& options = {});

/// Loads from text; `origin` names it in messages and gives the run its default name.
Config load_text(std::string_view text, const std::string& origin, const std::vector<std::string>& sets = {},
                 const LoadOptions& options = {});

}  // namespace trainer::config
