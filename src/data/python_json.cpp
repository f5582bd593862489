#include "data/python_json.h"

#include <algorithm>
#include <string>

#include "base/json.h"
#include "data/json_lines.h"

namespace trainer::data {

const nlohmann::json& member_of(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNone;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

nlohmann::json parse_python_json(std::string_view text) {
  if (nlohmann::json value = parse_json(text); !value.is_discarded()) return value;
  std::string plain;
  bool quoted = false;
  while (!text.empty()) {
    size_t length = quoted && text.front() == '\\' ? 2 : 1;
    bool number = false;
    if (text.front() == '"') quoted = !quoted;
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (quoted || !text.starts_with(name)) continue;
      length = name.size();
      number = true;
    }
    plain.append(number ? "\"" : "").append(text.substr(0, length)).append(number ? "\"" : "");
    text.remove_prefix(std::min(length, text.size()));
  }
  return parse_json(without_overflow(plain));
}

const char* why_no_object(const nlohmann::json& value) {
  return value.is_discarded() ? "not valid JSON, or values are nested too deeply" : "not a JSON object";
}

}  // namespace trainer::data
