#pragma once
// Files of one JSON object a line, each line read on its own.
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trainer::data {

/// The repairs of mend_json() in a line.
struct JsonRepair {
  int64_t surrogates = 0;  // halves of \u escapes without the other half, replaced by U+FFFD
  size_t first = 0;        // where the first of them was
};

/// Repairs in place constructs that JSON forbids but Python's json module writes or reads: halves of surrogate pairs
/// ("\ud83d"), NaN and Infinity as values (they become null), control characters within strings. Anything else stays as
/// it is.
JsonRepair mend_json(std::string& line);

/// Returns why a line is not a JSON object: "at column 7: …". Empty if it is one.
std::string json_fault(std::string_view line);

/// Calls `use` with each line that is not blank and its number, from 1 on, until it returns false. Invalid JSON, and
/// JSON nested too deeply to be copied and written, is passed as discarded (`is_discarded()`). Keys keep their order.
/// Lines that mend_json() can repair are repaired.
void for_each_json_line(std::string_view text,
                        const std::function<bool(int64_t number, nlohmann::ordered_json value)>& use);

}  // namespace trainer::data
