#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace trainer::report {

/// Returns text that is safe for a terminal: control characters become \x1b and the like, invalid UTF-8 becomes U+FFFD;
/// line ends and tabs stay.
std::string printable(std::string_view text);

/// Returns a text with each character replaced; invalid bytes become U+FFFD first.
std::string replaced(std::string_view text, const std::function<std::string(std::string_view character)>& by);
/// True if terminals and browsers may act on the character; line ends and tabs are harmless.
bool is_control(std::string_view character);

}  // namespace trainer::report
