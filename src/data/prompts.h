#pragma once
// Prompts as JSON lines: {"prompt": text} ; any other members of a line are kept.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::data {

struct Prompt {
  std::string text;
  std::optional<uint64_t> seed;
  std::string line;  // the JSON object

  bool operator==(const Prompt&) const = default;
};

/// Reads prompts, one JSON object per line; an empty text is an error. `path` names it in messages. Throws Code::data
/// naming the line that has no prompt or an invalid seed.
std::vector<Prompt> read_prompts(std::string_view text, const std::string& path);

}  // namespace trainer::data
