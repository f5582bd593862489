#include "data/python_json.h"

#include <algorithm>
#include <string>

#include "base/json.h"

namespace trainer::data {

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
  return parse_json(plain);
}

}  // namespace trainer::data
