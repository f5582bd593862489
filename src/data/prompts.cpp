#include "data/prompts.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/json_lines.h"

namespace trainer::data {

using nlohmann::ordered_json;

std::vector<Prompt> read_prompts(std::string_view text, const std::string& path) {
  constexpr const char* kRefusal = "expected a JSON object with a text called \"prompt\"";
  std::vector<Prompt> prompts;
  for_each_json_line(text, path, kRefusal, [&](int64_t number, const ordered_json& object, const std::string& line) {
    if (!object.is_object() || !object.contains("prompt") || !object["prompt"].is_string())
      throw Error(Code::data, format("{}:{}: {}", path, number, kRefusal));
    Prompt prompt{object["prompt"].get<std::string>(), std::nullopt, line};
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

}  // namespace trainer::data
