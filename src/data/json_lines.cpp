#include "data/json_lines.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace trainer::data {
namespace {

using nlohmann::ordered_json;

/// Returns the value of an escape such as "\u00e9" at `at`.
std::optional<unsigned> escape_at(std::string_view line, size_t at) {
  if (line.size() < at + 6 || line[at] != '\\' || line[at + 1] != 'u') return std::nullopt;
  unsigned value = 0;
  const auto [end, fault] = std::from_chars(line.data() + at + 2, line.data() + at + 6, value, 16);
  if (fault != std::errc() || end != line.data() + at + 6) return std::nullopt;
  return value;
}

/// Returns the end of the JSON value that begins at `at`.
size_t end_of_value(std::string_view text, size_t at) {
  int depth = 0;
  do {
    const char c = text[at];
    if (c == '"') {
      for (++at; text[at] != '"'; ++at) at += text[at] == '\\';
    } else if (depth == 0 && c != '{' && c != '[') {  // a number or a word
      return std::min(text.find_first_of(" \t\r\n,:]}", at), text.size());
    } else {
      depth += c == '{' || c == '[';
      depth -= c == '}' || c == ']';
    }
    ++at;
  } while (depth > 0);
  return at;
}

bool is_high(unsigned unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool is_low(unsigned unit) { return unit >= 0xdc00 && unit < 0xe000; }

}  // namespace

JsonRepair mend_json(std::string& line) {
  JsonRepair repair;
  std::string out;
  bool within = false;  // inside a string
  for (size_t at = 0; at < line.size();) {
    const std::string_view rest = std::string_view(line).substr(at);
    const char c = line[at];
    size_t taken = 1;
    if (!within) {
      static constexpr std::string_view kNoNumbers[] = {"NaN", "Infinity", "-Infinity"};
      const auto* const word =
          std::ranges::find_if(kNoNumbers, [&](std::string_view name) { return rest.starts_with(name); });
      const bool found = word != std::end(kNoNumbers);
      if (found) taken = word->size();
      out += found ? "null" : std::string(1, c);
      within = c == '"';
    } else if (const std::optional<unsigned> unit = escape_at(line, at)) {
      const std::optional<unsigned> next = escape_at(line, at + 6);
      const bool pair = is_high(*unit) && next && is_low(*next);
      taken = pair ? 12 : 6;
      if (!pair && (is_high(*unit) || is_low(*unit))) {
        if (repair.surrogates++ == 0) repair.first = at;
        out += "\\ufffd";
      } else {
        out += rest.substr(0, taken);
      }
    } else if (c == '\\') {
      taken = std::min<size_t>(2, rest.size());
      out += rest.substr(0, taken);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      within = c != '"';
      out += c;
    }
    at += taken;
  }
  line = std::move(out);
  return repair;
}

std::string without_overflow(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    if (text[at] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
    } else if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) {
      end = std::min(text.find_first_not_of("0123456789+-.eE", at), text.size());
    }
    const std::string token(text.substr(at, end - at));
    const bool overflows = token.front() != '"' && token.size() > 1 && std::isinf(std::strtod(token.c_str(), nullptr));
    out += overflows ? "null" : token;
    at = end;
  }
  return out;
}

std::string with_members(std::string_view object, const ordered_json& members) {
  std::string out = "{";
  std::set<std::string> placed;
  const auto add = [&](std::string_view name, std::string_view value) {
    out += format("{}{}:{}", out.size() > 1 ? "," : "", name, value);
  };
  for (size_t at = object.find('{') + 1; (at = object.find_first_not_of(" \t\r\n,", at), object[at] != '}');) {
    const size_t name_end = end_of_value(object, at);
    const std::string_view name = object.substr(at, name_end - at);
    const size_t begin = object.find_first_not_of(" \t\r\n", object.find(':', name_end) + 1);
    at = end_of_value(object, begin);
    const auto key = ordered_json::parse(name).get<std::string>();
    const auto member = members.find(key);
    if (member == members.end())
      add(name, object.substr(begin, at - begin));
    else if (placed.insert(key).second)
      add(name, json_text(*member));
  }
  for (const auto& [key, value] : members.items())
    if (!placed.contains(key)) add(json_text(ordered_json(key)), json_text(value));
  return out + "}";
}

std::string json_fault(std::string_view line) {
  try {
    if (ordered_json::parse(line).is_object()) return "";
  } catch (const ordered_json::parse_error& error) {
    // "[json…] parse error at line 1, column 7: syntax error while … - …; last read: '…'"
    std::string_view what = error.what();
    what = what.substr(0, what.find("; last read"));
    const size_t text = what.find(": ");
    return format("at column {}: {}", error.byte, text == what.npos ? what : what.substr(text + 2));
  } catch (const std::exception& error) {  // "[json…] number overflow …"
    const std::string_view what = error.what();
    return std::string(what.substr(what.find("] ") == what.npos ? 0 : what.find("] ") + 2));
  }
  return "it is not an object";
}

void for_each_json_line(std::string_view text, const std::string& path, const char* refusal,
                        const std::function<bool(int64_t number, ordered_json value, const std::string& line)>& use) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    auto value = parse_json<ordered_json>(line);
    if (value.is_discarded()) {
      const size_t before = line.size();
      mend_json(line);
      value = parse_json<ordered_json>(without_overflow(line));
      if (value.is_discarded()) {
        std::string fault = json_fault(line);
        // Columns of the repaired line may be different ones.
        if (line.size() != before && fault.starts_with("at column")) fault = fault.substr(fault.find(": ") + 2);
        throw Error(Code::data, format("{}:{}: {}; {}", path, number, refusal,
                                       fault.empty() ? "values are nested too deeply" : fault));
      }
    }
    if (!use(number, std::move(value), line)) return;
  }
}

}  // namespace trainer::data
