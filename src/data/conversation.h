#pragma once
// Conversations, and how JSON objects contain them.
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_formats.h"

namespace trainer::data {

struct ChatMessage {
  enum class Role { system, user, assistant } role = Role::user;
  std::string content;
  bool trained = true;  // only for the assistant's

  bool operator==(const ChatMessage&) const = default;
};
using Conversation = std::vector<ChatMessage>;

/// Why an object is not a conversation to train on.
enum class ChatFlaw { no_members, no_assistant, unknown_role, tool_calls, other_parts, null_content, repeated_role };
constexpr size_t kChatFlaws = 7;
/// Returns the flaw after a count: "3 (tool calls)".
const char* name_of(ChatFlaw flaw);

/// Reads the members `messages`, `conversations`, or `prompt` and `completion`; other members are ignored. A message
/// is {role, content} or {from, value}. Its content is a text or a list of parts of type text, which are joined;
/// weight: 0 means that it is not trained. Returns a flaw instead of throwing.
std::optional<ChatFlaw> read_conversation(const nlohmann::json& object, Conversation& out);
/// Removes the messages after the last turn of the assistant. Returns a flaw if nothing is left to train on, or if the
/// format (null: any) does not allow the order of roles.
std::optional<ChatFlaw> keep_trained(const ChatFormat* format, Conversation& conversation);

}  // namespace trainer::data
