#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace trainer::report {

/// Returns text that is safe for a terminal: control characters are escaped ("\x1b"), and invalid UTF-8 becomes U+FFFD.
/// Newlines and tabs are kept.
std::string printable(std::string_view text);

/// Returns a text with each character replaced by by(character); invalid bytes become U+FFFD first.
std::string replaced(std::string_view text, const std::function<std::string(std::string_view character)>& by);
/// True if terminals or browsers may act on the character. Newlines and tabs are harmless.
bool is_control(std::string_view character);

}  // namespace trainer::report
