#pragma once
// Files of one JSON object a line, each line read on its own.
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trainer::data {

/// Calls `use` with each line that is not blank and its number, from 1 on, until it returns false. What is no JSON, and
/// what is nested too deeply to be copied and written, is given as discarded (`is_discarded()`). Keys keep their order.
void for_each_json_line(std::string_view text,
                        const std::function<bool(int64_t number, nlohmann::ordered_json value)>& use);

}  // namespace trainer::data
