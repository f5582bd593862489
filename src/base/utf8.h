#pragma once
// UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF).
#include <cstdint>
#include <string>
#include <string_view>

namespace trainer {

/// Returns the length in bytes of the first character of `text`, or 0 if `text` does not start with a valid character.
size_t utf8_character(std::string_view text);

/// Returns the number of a character, given its bytes; they must be valid.
constexpr uint32_t utf8_code(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  uint32_t code = character.size() == 1 ? byte(0) : byte(0) & (0xFFu >> (character.size() + 1));
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 63u);
  return code;
}

/// Returns the number of bytes at the end of `text` that begin a character but do not complete it (0 to 3).
size_t utf8_unfinished(std::string_view text);

/// Returns the position of the first byte at or after `from` that is not part of a valid character; text.size() if
/// every byte is.
size_t utf8_first_invalid(std::string_view text, size_t from = 0);

struct Utf8Repair {
  int64_t replaced = 0;  // invalid bytes, each replaced by U+FFFD
  size_t first = 0;      // position of the first invalid byte
};
/// Replaces every invalid byte of `text` with U+FFFD. Valid text is neither changed nor copied.
Utf8Repair utf8_repair(std::string& text);

}  // namespace trainer
