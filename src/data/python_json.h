#pragma once
// JSON as Python's json module writes it.
#include <nlohmann/json.hpp>
#include <string_view>

namespace trainer::data {

/// Returns a member of an object; null if it is missing, or the value is not an object.
const nlohmann::json& member_of(const nlohmann::json& object, const char* key);

/// Like parse_json(), but accepts what Python writes and reads as numbers that are not finite: NaN, Infinity and
/// -Infinity become strings, 1e999 becomes null, so that only a reader of such a field rejects it.
nlohmann::json parse_python_json(std::string_view text);
/// Says why a value that parse_python_json() returned is not an object.
const char* why_no_object(const nlohmann::json& value);

}  // namespace trainer::data
