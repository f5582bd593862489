#pragma once
// Prompts as JSON lines: {"prompt": text} and whatever else a line has, which is kept.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::data {

/// Reads the lines of `text`, one or more. `path` names it in messages. Throws Code::data naming the line that has no
/// prompt, or a seed that is none.
std::vector<nlohmann::ordered_json> read_prompts(std::string_view text, const std::string& path);

}  // namespace trainer::data
