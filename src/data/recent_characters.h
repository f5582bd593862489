#pragma once
// Characters of Unicode 15.0, 15.1 and 16.0 that an older regular expression library does not know.
#include <string>
#include <string_view>

namespace trainer::data {

constexpr int kOldestUnicode = 14, kNewestUnicode = 16;

/// True if valid UTF-8 contains a character that was assigned or changed after Unicode 14.0, up to 16.0.
bool has_recent_characters(std::string_view text);

/// Returns those of these characters that have a property, as ranges within the brackets of a class in PCRE2. The
/// property is a general category ("Lu"), its first letter, "alphabetic", "any", or the name of a script ("Han"), of
/// which those that are new as a whole, and have no character in older versions, are not listed.
std::string recent_characters(std::string_view property);

}  // namespace trainer::data
