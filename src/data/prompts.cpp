#include "data/prompts.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/json_lines.h"

namespace trainer::data {

using nlohmann::ordered_json;

std::vector<ordered_json> read_prompts(std::string_view text, const std::string& path) {
  constexpr const char* kRefusal = "expected a JSON object with a text called \"prompt\"";
  std::vector<ordered_json> prompts;
  for_each_json_line(text, path, kRefusal, [&](int64_t number, ordered_json line, const std::string&) {
    if (!line.is_object() || !line.contains("prompt") || !line["prompt"].is_string())
      throw Error(Code::data, format("{}:{}: {}", path, number, kRefusal));
    if (line.contains("seed") && !line["seed"].is_number_unsigned())
      throw Error(Code::data, format("{}:{}: seed: expected an integer of at least 0", path, number));
    prompts.push_back(std::move(line));
    return true;
  });
  if (prompts.empty()) throw Error(Code::data, format("{}: no prompts", path));
  return prompts;
}

}  // namespace trainer::data
