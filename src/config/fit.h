#pragma once
// Converts values from TOML and --set to the types of keys.
#include <string>

#include "config/keys.h"
#include "config/mistakes.h"

namespace trainer::config {

/// Returns the value converted to the key's type, or monostate if it cannot be: integers convert to numbers, whole
/// numbers to integers, and a string to a list with one element.
Value fitted(const Field& key, const Value& value);
/// Describes the values that the key accepts: "an integer >= 1".
std::string expected(const Field& key);
/// Returns the value converted to the key's type. If it does not fit or is out of range, records an error at `path` and
/// returns monostate.
Value checked(const Field& key, const std::string& path, const Value& found, const std::string& shown, const Origin& at,
              Mistakes& mistakes);

}  // namespace trainer::config
