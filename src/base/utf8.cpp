#include "base/utf8.h"

#include <cstring>

namespace trainer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool continues(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

/// Returns the length of a character with this lead byte; 0 if no character starts with it.
size_t announced(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

/// True if the second byte is in the range that the lead byte allows. That excludes overlong forms and surrogates.
bool second_fits(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0;
    case 0xED:
      return second < 0xA0;
    case 0xF0:
      return second >= 0x90;
    case 0xF4:
      return second < 0x90;
    default:
      return true;
  }
}

}  // namespace

size_t utf8_character(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t length = announced(lead);
  if (length <= 1) return length;
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!continues(text[i])) return 0;
  }
  return second_fits(lead, static_cast<uint8_t>(text[1])) ? length : 0;
}

size_t utf8_unfinished(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto lead = static_cast<uint8_t>(text[text.size() - back]);
    if ((lead & 0xC0) == 0x80) continue;
    if (announced(lead) <= back) return 0;
    return back == 1 || second_fits(lead, static_cast<uint8_t>(text[text.size() - back + 1])) ? back : 0;
  }
  return 0;
}

size_t utf8_first_invalid(std::string_view text, size_t from) {
  size_t at = from;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof eight <= text.size()) {  // plain ASCII, eight bytes at a time
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const size_t length = utf8_character(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return text.size();
}

Utf8Repair utf8_repair(std::string& text) {
  Utf8Repair repair;
  repair.first = utf8_first_invalid(text);
  if (repair.first == text.size()) return repair;
  std::string repaired;
  repaired.reserve(text.size() + 64);
  size_t done = 0;
  for (size_t bad = repair.first; bad < text.size(); bad = utf8_first_invalid(text, done)) {
    repaired.append(text, done, bad - done).append(kReplacement);
    done = bad + 1;
    ++repair.replaced;
  }
  text = std::move(repaired.append(text, done));
  return repair;
}

}  // namespace trainer
