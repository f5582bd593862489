#include "data/prompts.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/json_lines.h"

namespace trainer::data {

using nlohmann::ordered_json;

namespace {

/// Reads one prompt per line; `read` sets all but its seed and line, and returns why it cannot.
std::vector<Prompt> read_lines(std::string_view text, const std::string& path, const char* refusal,
                               const std::function<std::string(const ordered_json& object, Prompt& prompt)>& read) {
  std::vector<Prompt> prompts;
  for_each_json_line(text, path, refusal, [&](int64_t number, const ordered_json& object, const std::string& line) {
    Prompt prompt{{}, std::nullopt, line};
    if (const std::string fault = object.is_object() ? read(object, prompt) : refusal; !fault.empty())
      throw Error(Code::data, format("{}:{}: {}", path, number, fault));
    if (const auto seed = object.find("seed"); seed != object.end()) {
      if (!seed->is_number_unsigned())
        throw Error(Code::data, format("{}:{}: seed: expected an integer from 0 to 2^64 - 1", path, number));
      prompt.seed = seed->get<uint64_t>();
    }
    prompts.push_back(std::move(prompt));
    return true;
  });
  if (prompts.empty()) throw Error(Code::data, format("{}: no prompts", path));
  return prompts;
}

}  // namespace

std::vector<Prompt> read_prompts(std::string_view text, const std::string& path) {
  constexpr const char* kRefusal = "expected a JSON object with a text called \"prompt\"";
  return read_lines(text, path, kRefusal, [](const ordered_json& object, Prompt& prompt) -> std::string {
    if (!object.contains("prompt") || !object["prompt"].is_string()) return kRefusal;
    prompt.text = object["prompt"].get<std::string>();
    return {};
  });
}

std::vector<Prompt> read_chat_prompts(std::string_view text, const std::string& path) {
  constexpr const char* kRefusal = "expected a JSON object with a list called \"messages\"";
  return read_lines(text, path, kRefusal, [](const ordered_json& object, Prompt& prompt) -> std::string {
    if (!object.contains("messages")) return kRefusal;
    nlohmann::json given;
    given["messages"] = nlohmann::json(object["messages"]);
    if (const auto flaw = read_conversation(given, prompt.messages)) return format("messages: {}", name_of(*flaw));
    if (prompt.messages.empty() || prompt.messages.back().role != ChatMessage::Role::user)
      return "messages: the last one must be the user's";
    return {};
  });
}

}  // namespace trainer::data
