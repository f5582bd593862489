#include "data/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trainer::data {
namespace {

using nlohmann::json;
using Role = ChatMessage::Role;

const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

/// Appends the text of a content to `out`.
std::optional<ChatFlaw> read_content(const json& content, std::string& out) {
  if (content.is_string()) {
    out += content.get_ref<const std::string&>();
    return std::nullopt;
  }
  if (!content.is_array()) return content.is_null() ? ChatFlaw::null_content : ChatFlaw::other_parts;
  for (const json& part : content) {
    if (!part.is_object() || member(part, "type") != "text") return ChatFlaw::other_parts;
    if (!member(part, "text").is_string()) return ChatFlaw::null_content;
    out += part["text"].get_ref<const std::string&>();
  }
  return std::nullopt;
}

std::optional<ChatFlaw> read_message(const json& given, bool trained, Conversation& out) {
  if (!given.is_object()) return ChatFlaw::unknown_role;
  const bool pairs = given.contains("role");
  const json &role = member(given, pairs ? "role" : "from"), &content = member(given, pairs ? "content" : "value");
  ChatMessage message;
  if (role == "user" || role == "human") {
    message.role = Role::user;
  } else if (role == "assistant" || role == "gpt") {
    message.role = Role::assistant;
  } else if (role == "system" && out.empty()) {
    message.role = Role::system;
  } else {
    const bool tool = role == "tool" || role == "function" || role == "function_call" || role == "observation";
    return tool ? ChatFlaw::tool_calls : ChatFlaw::unknown_role;
  }
  for (const char* calls : {"tool_calls", "function_call"})
    if (const json& value = member(given, calls); !value.is_null() && !value.empty()) return ChatFlaw::tool_calls;
  const json& weight = member(given, "weight");
  if (message.role == Role::assistant)
    message.trained = trained && !(weight.is_number() && weight == 0) && weight != false;
  if (const auto flaw = read_content(content, message.content)) return flaw;
  out.push_back(std::move(message));
  return std::nullopt;
}

std::optional<ChatFlaw> read_messages(const json& list, bool trained, Conversation& out) {
  for (const json& message : list)
    if (const auto flaw = read_message(message, trained, out)) return flaw;
  return std::nullopt;
}

}  // namespace

const char* name_of(ChatFlaw flaw) {
  constexpr const char* kNames[kChatFlaws] = {"without messages",   "without an assistant turn to train",
                                              "unknown roles",      "tool calls",
                                              "images or the like", "null contents",
                                              "repeated roles"};
  return kNames[static_cast<size_t>(flaw)];
}

std::optional<ChatFlaw> read_conversation(const json& object, Conversation& out) {
  out.clear();
  for (const char* name : {"messages", "conversations"})
    if (const json& list = member(object, name); list.is_array()) return read_messages(list, true, out);
  const json &prompt = member(object, "prompt"), &completion = member(object, "completion");
  const auto usable = [](const json& value) { return value.is_string() || value.is_array(); };
  if (!usable(prompt) || !usable(completion)) return ChatFlaw::no_members;
  const auto add = [&](const json& value, Role role) -> std::optional<ChatFlaw> {
    if (value.is_array()) return read_messages(value, role == Role::assistant, out);
    out.push_back({role, value.get<std::string>()});
    return std::nullopt;
  };
  if (const auto flaw = add(prompt, Role::user)) return flaw;
  return add(completion, Role::assistant);
}

std::optional<ChatFlaw> keep_trained(const ChatFormat* format, Conversation& conversation) {
  while (!conversation.empty() && conversation.back().role != Role::assistant) conversation.pop_back();
  const auto trained = [](const ChatMessage& message) { return message.role == Role::assistant && message.trained; };
  if (std::ranges::none_of(conversation, trained)) return ChatFlaw::no_assistant;
  if (format == nullptr || !format->alternates) return std::nullopt;
  Role next = Role::user;
  for (const ChatMessage& message : conversation) {
    if (message.role == Role::system) continue;
    if (message.role != next) return ChatFlaw::repeated_role;
    next = next == Role::user ? Role::assistant : Role::user;
  }
  return std::nullopt;
}

}  // namespace trainer::data
