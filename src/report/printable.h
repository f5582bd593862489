#pragma once
#include <string>
#include <string_view>

namespace trainer::report {

/// Text as it may go to a terminal: control characters (a terminal acts on them) become \x1b and the like, invalid
/// UTF-8 becomes U+FFFD; line ends and tabs stay.
std::string printable(std::string_view text);

}  // namespace trainer::report
