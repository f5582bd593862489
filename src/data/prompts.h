#pragma once
// Prompts as JSON lines: {"prompt": text} ; any other members of a line are kept.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::data {

/// Reads prompts, one JSON object per line; an empty text is an error. `path` names it in messages. Throws Code::data
/// naming the line that has no prompt or an invalid seed.
std::vector<nlohmann::ordered_json> read_prompts(std::string_view text, const std::string& path);

}  // namespace trainer::data
