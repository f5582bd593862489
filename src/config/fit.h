#pragma once
// Fits values from TOML and --set to the types of keys.
#include <string>

#include "config/keys.h"
#include "config/mistakes.h"

namespace trainer::config {

/// Returns the value converted to the key's type, or nothing. An integer may become a number, a whole number an
/// integer, and a string a list with one element.
Value fitted(const Field& key, const Value& value);
/// Returns what the key takes: "an integer >= 1".
std::string expected(const Field& key);
/// Returns the value fitted to the key. Records the mistake in `path` and returns nothing if it does not fit.
Value checked(const Field& key, const std::string& path, const Value& found, const std::string& shown, const Origin& at,
              Mistakes& mistakes);

}  // namespace trainer::config
