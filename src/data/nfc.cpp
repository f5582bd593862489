#include "data/nfc.h"

#if TRAINER_HAS_UTF8PROC
#include <utf8proc.h>
#endif

#include <cstdint>
#include <cstdlib>

#include "base/error.h"

namespace trainer::data {

#if TRAINER_HAS_UTF8PROC
namespace {

constexpr uint8_t kFirstLead = 0xCC;  // first byte of U+0300, the first character that can change or cause a change

/// True if a character is normal, and is so next to any other: it neither decomposes nor joins the one before it. Those
/// that join are marks and the second and third letters of Hangul syllables; scripts from U+11000 are not examined.
bool is_inert(utf8proc_int32_t character) {
  if (character >= 0xAC00 && character <= 0xD7A3) return true;  // whole Hangul syllables
  if (character >= 0x1100 && character <= 0x11FF) return false;
  if (character >= 0x11000 && character < 0x1B000) return false;
  const utf8proc_category_t category = utf8proc_category(character);
  if (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME)
    return false;
  constexpr utf8proc_ssize_t kLongest = 8;
  utf8proc_int32_t parts[kLongest];
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(character, parts, kLongest, UTF8PROC_DECOMPOSE, /*last_boundclass=*/nullptr);
  return count == 1 && parts[0] == character;
}

/// True if every character of the text is inert, or below U+0300.
bool is_normal(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    if (bytes[at] < kFirstLead) {
      ++at;
      continue;
    }
    utf8proc_int32_t character = 0;
    const utf8proc_ssize_t length =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    TRAINER_CHECK(length > 0, "byte {} of {} is not valid UTF-8", at, text.size());
    if (!is_inert(character)) return false;
    at += static_cast<size_t>(length);
  }
  return true;
}

void append_normal(std::string_view text, std::string& out) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) throw Error(Code::data, format("Unicode normalisation failed: {}", utf8proc_errmsg(length)));
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
  std::free(result);
}

}  // namespace

bool has_nfc() { return true; }

std::string_view nfc(std::string_view text, std::string& memory) {
  const auto is_ascii = [&](size_t at) { return static_cast<uint8_t>(text[at]) < 0x80; };
  size_t copied = 0;  // bytes of `text` that are in `memory`
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < kFirstLead) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + 1;  // the part between ASCII characters, with the one before it, which marks may join
    while (begin > copied && !is_ascii(begin)) --begin;
    while (end < text.size() && !is_ascii(end)) ++end;
    const std::string_view part = text.substr(begin, end - begin);
    if (!is_normal(part)) {
      if (copied == 0) memory.clear();
      memory.append(text.substr(copied, begin - copied));
      append_normal(part, memory);
      copied = end;
    }
    at = end;
  }
  if (copied == 0) return text;
  memory.append(text.substr(copied));
  return memory;
}

#else

bool has_nfc() { return false; }
std::string_view nfc(std::string_view text, std::string&) {
  TRAINER_CHECK(has_nfc(), "nfc() requires a build with utf8proc");
  return text;
}

#endif

}  // namespace trainer::data
