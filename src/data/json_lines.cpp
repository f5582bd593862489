#include "data/json_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trainer::data {
namespace {

using nlohmann::ordered_json;

/// Copying and writing a value call themselves for what it holds: depth is stack.
constexpr int kDeepest = 64;

ordered_json parse(std::string_view line) {
  bool too_deep = false;
  const auto watch = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;  // drops what is deeper
  };
  ordered_json value = ordered_json::parse(line, watch, /*allow_exceptions=*/false);
  return too_deep ? ordered_json(ordered_json::value_t::discarded) : value;
}

}  // namespace

void for_each_json_line(std::string_view text, const std::function<bool(int64_t number, ordered_json value)>& use) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (!use(number, parse(line))) return;
  }
}

}  // namespace trainer::data
