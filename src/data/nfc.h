#pragma once
// Unicode normalisation form C, as some tokenizers need it: "e" followed by U+0301 becomes "é".
#include <string>
#include <string_view>

namespace trainer::data {

/// True if the program was built with utf8proc, which nfc() requires.
bool has_nfc();

/// Returns the normal form of valid UTF-8: `text` itself if it is already normal, else a view of `memory`. Text without
/// a character above U+02FF is normal. Characters below U+0080 never join the text before them, so that pieces that
/// begin with one can be normalised separately.
std::string_view nfc(std::string_view text, std::string& memory);

}  // namespace trainer::data
