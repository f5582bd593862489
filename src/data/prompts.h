#pragma once
// Prompts as JSON lines: {"prompt": text}, or conversations to continue; any other members of a line are kept.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/conversation.h"

namespace trainer::data {

struct Prompt {
  std::string text;
  std::optional<uint64_t> seed;
  std::string line;            // the JSON object
  Conversation messages = {};  // instead of the text

  bool operator==(const Prompt&) const = default;
};

/// Reads prompts, one JSON object per line; an empty text is an error. `path` names it in messages. Throws Code::data
/// naming the line that has no prompt or an invalid seed.
std::vector<Prompt> read_prompts(std::string_view text, const std::string& path);
/// Reads conversations to continue, {"messages": […]}, likewise. The last message must be the user's.
std::vector<Prompt> read_chat_prompts(std::string_view text, const std::string& path);

}  // namespace trainer::data
