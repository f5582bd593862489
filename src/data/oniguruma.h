#pragma once
// Regular expressions in the syntax of Oniguruma, which the tokenizers library uses, for PCRE2.
#include <string>
#include <string_view>

namespace trainer::data {

/// Returns an expression for PCRE2 that matches what Oniguruma (6.9, its own syntax, Unicode 16) matches with
/// `expression`: the two disagree, for example, about "$", "\h", "\w", "\b", "{1,3}+", "[a&&b]", "[a[b]]" and
/// "(?m:.)". With `recent`, classes include the characters of recent_characters.h. The expression must be valid UTF-8.
/// Throws Code::data, naming `origin`, for what is not well-formed and for what cannot be expressed: back-references,
/// calls, conditions, "\G", "\K", "\X", option x, and letters whose case variants have several characters.
std::string pcre2_of_oniguruma(std::string_view expression, bool recent, const std::string& origin);

}  // namespace trainer::data
