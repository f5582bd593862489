#pragma once
// JSON as Python's json module writes it.
#include <nlohmann/json.hpp>
#include <string_view>

namespace trainer::data {

/// Like parse_json(), but accepts what Python writes for numbers that are not finite: NaN, Infinity and -Infinity
/// become strings, so that only a reader of such a field rejects it.
nlohmann::json parse_python_json(std::string_view text);

}  // namespace trainer::data
