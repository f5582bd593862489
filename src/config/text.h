#pragma once
// Configurations as text.
#include <string>
#include <string_view>

#include "config/keys.h"

namespace trainer::config {

/// As TOML writes it; numbers in the shortest form that reads back to the same bits. Empty for monostate.
std::string to_toml(const Value& value);

/// The values in force as a file that load() reads back to the same bits. Keys nothing was given for and nothing
/// follows for stay out.
std::string to_toml(const Config& config);

/// The same with a comment on each line: where the value came from (default, derived, FILE:LINE or --set).
std::string show(const Config& config);

/// All keys with default, range, unit and meaning: configs/reference.toml.
std::string reference();

}  // namespace trainer::config
