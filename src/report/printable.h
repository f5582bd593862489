#pragma once
#include <string>
#include <string_view>

namespace trainer::report {

/// Returns text that is safe for a terminal: control characters become \x1b and the like, invalid UTF-8 becomes U+FFFD;
/// line ends and tabs stay.
std::string printable(std::string_view text);

}  // namespace trainer::report
