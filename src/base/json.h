#pragma once
// JSON from and to text.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trainer {

/// Returns the parsed value; a discarded one if the text is not JSON or has values more than 64 deep. Copying,
/// comparing and writing values is recursive, so nesting consumes stack.
template <typename Json = nlohmann::json>
Json parse_json(std::string_view text) {
  constexpr int kDeepest = 64;
  bool too_deep = false;
  const auto watch = [&](int depth, typename Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;  // drops deeper values
  };
  Json value = Json::parse(text, watch, /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : value;
}

/// Returns the value as text, on one line if `indent` is negative. Doubles survive a round trip, NaN and infinity
/// become null. Bytes that are not UTF-8, as file names may have, are replaced.
template <typename Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trainer
