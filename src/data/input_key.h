#pragma once
// Input key: the inputs of a derived file, stored as JSON next to it, to decide whether the file can be reused.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/text.h"

namespace trainer::data {

/// Describes each file: path, size, modification time and hash. Files that `known` (an earlier description) lists with
/// the same path, size and time are not read again. Missing files are described as in `known`, including those in a
/// folder that was moved, and their names are added to `gone`.
nlohmann::json describe_inputs(const std::vector<std::string>& files, const TextOptions& options,
                               const nlohmann::json& known, std::vector<std::string>& gone);

/// Returns the files in `known` that `pattern` matches, in order: its expansion when they existed.
std::vector<std::string> known_files(const std::string& pattern, const nlohmann::json& known);

/// Returns a hash over the inputs' sizes and contents (not their names), the text options and `extra`.
std::string input_key(const nlohmann::json& inputs, const TextOptions& options, const std::string& extra);

/// Returns the parsed file, or null if it is missing or corrupt.
nlohmann::json read_json_or_null(const std::filesystem::path& path);

/// Returns a string member of any JSON value; empty if there is none.
std::string text_in(const nlohmann::json& object, const char* key);
/// Returns the description of the inputs in a file parsed by read_json_or_null(), or null.
nlohmann::json inputs_in(const nlohmann::json& object);

}  // namespace trainer::data
