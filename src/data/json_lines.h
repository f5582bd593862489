#pragma once
// Files with one JSON object per line; each line is parsed on its own.
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trainer::data {

/// The repairs that mend_json() made in a line.
struct JsonRepair {
  int64_t surrogates = 0;  // unpaired \u surrogate escapes, replaced by U+FFFD
  size_t first = 0;        // position of the first one
};

/// Repairs in place what JSON forbids but Python's json module writes or reads: unpaired surrogates ("\ud83d"), NaN and
/// Infinity as values (they become null), control characters within strings. Everything else is unchanged.
JsonRepair mend_json(std::string& line);

/// Returns the JSON text with null instead of numbers beyond the range of doubles, such as 1e999, which the parser
/// refuses (Python's json module reads infinity).
std::string without_overflow(std::string_view text);

/// Returns why a line is not a JSON object: "at column 7: …". Empty if it is one.
std::string json_fault(std::string_view line);

/// Calls `use` with each line that is not blank, its number, counted from 1, and its text, until it returns false. The
/// order of keys is kept. Lines that mend_json() can repair are repaired, also in the text. Throws Code::data at
/// invalid JSON, and at JSON nested too deeply to be copied and written: `path`, the line's number, `refusal` and the
/// reason.
void for_each_json_line(
    std::string_view text, const std::string& path, const char* refusal,
    const std::function<bool(int64_t number, nlohmann::ordered_json value, const std::string& line)>& use);

/// Returns the text of a JSON object with these members, which replace others of the same name or follow the last one.
/// The other members keep their text: numbers may have more digits than a parsed value can hold.
std::string with_members(std::string_view object, const nlohmann::ordered_json& members);

}  // namespace trainer::data
