#pragma once
// What a derived file was made from, kept beside it as JSON: tells whether it can be reused.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/text.h"

namespace trainer::data {

/// Path, size, modification time and hash of each file. Files that `known` (an earlier description) lists with the same
/// path, size and time are not read again.
nlohmann::json describe_inputs(const std::vector<std::string>& files, const TextOptions& options,
                               const nlohmann::json& known);

/// A hash over the inputs' sizes and contents (not their names), the text options and `extra`.
std::string input_key(const nlohmann::json& inputs, const TextOptions& options, const std::string& extra);

/// The parsed file, or null when it is missing or damaged.
nlohmann::json read_json_or_null(const std::filesystem::path& path);

}  // namespace trainer::data
