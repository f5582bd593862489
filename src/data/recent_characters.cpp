#include "data/recent_characters.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"
#include "base/utf8.h"

namespace trainer::data {
namespace {

struct Range {
  uint32_t first, last;
  std::string_view category, script;  // script: ISO 15924
  bool alphabetic;
};

/// From the Unicode character database, version 16.0: what 14.0 does not assign, and, without a script, what became
/// alphabetic or changed its category.
constexpr Range kRanges[] = {
    // clang-format off
    {0x363, 0x36F, "Mn", "", 1}, {0x897, 0x897, "Mn", "Arab", 1}, {0xC04, 0xC04, "Mn", "", 1},
    {0xCF3, 0xCF3, "Mc", "Knda", 1}, {0xECE, 0xECE, "Mn", "Laoo", 0}, {0xF82, 0xF83, "Mn", "", 1},
    {0x1B4E, 0x1B4F, "Po", "Bali", 0}, {0x1B7F, 0x1B7F, "Po", "Bali", 0}, {0x1C89, 0x1C89, "Lu", "Cyrl", 1},
    {0x1C8A, 0x1C8A, "Ll", "Cyrl", 1}, {0x1DD3, 0x1DE6, "Mn", "", 1}, {0x2427, 0x2429, "So", "Zyyy", 0},
    {0x2FFC, 0x2FFF, "So", "Zyyy", 0}, {0x31E4, 0x31E5, "So", "Zyyy", 0}, {0x31EF, 0x31EF, "So", "Zyyy", 0},
    {0xA7CB, 0xA7CC, "Lu", "Latn", 1}, {0xA7CD, 0xA7CD, "Ll", "Latn", 1}, {0xA7DA, 0xA7DA, "Lu", "Latn", 1},
    {0xA7DB, 0xA7DB, "Ll", "Latn", 1}, {0xA7DC, 0xA7DC, "Lu", "Latn", 1}, {0x105C0, 0x105F3, "Lo", "Todr", 1},
    {0x10D40, 0x10D49, "Nd", "Gara", 0}, {0x10D4A, 0x10D4D, "Lo", "Gara", 1}, {0x10D4E, 0x10D4E, "Lm", "Gara", 1},
    {0x10D4F, 0x10D4F, "Lo", "Gara", 1}, {0x10D50, 0x10D65, "Lu", "Gara", 1}, {0x10D69, 0x10D69, "Mn", "Gara", 1},
    {0x10D6A, 0x10D6D, "Mn", "Gara", 0}, {0x10D6E, 0x10D6E, "Pd", "Gara", 0}, {0x10D6F, 0x10D6F, "Lm", "Gara", 1},
    {0x10D70, 0x10D85, "Ll", "Gara", 1}, {0x10D8E, 0x10D8F, "Sm", "Gara", 0}, {0x10EC2, 0x10EC4, "Lo", "Arab", 1},
    {0x10EFC, 0x10EFC, "Mn", "Arab", 1}, {0x10EFD, 0x10EFF, "Mn", "Arab", 0}, {0x11080, 0x11081, "Mn", "", 1},
    {0x1123F, 0x11240, "Lo", "Khoj", 1}, {0x11241, 0x11241, "Mn", "Khoj", 1}, {0x11380, 0x11389, "Lo", "Tutg", 1},
    {0x1138B, 0x1138B, "Lo", "Tutg", 1}, {0x1138E, 0x1138E, "Lo", "Tutg", 1}, {0x11390, 0x113B5, "Lo", "Tutg", 1},
    {0x113B7, 0x113B7, "Lo", "Tutg", 1}, {0x113B8, 0x113BA, "Mc", "Tutg", 1}, {0x113BB, 0x113C0, "Mn", "Tutg", 1},
    {0x113C2, 0x113C2, "Mc", "Tutg", 1}, {0x113C5, 0x113C5, "Mc", "Tutg", 1}, {0x113C7, 0x113CA, "Mc", "Tutg", 1},
    {0x113CC, 0x113CD, "Mc", "Tutg", 1}, {0x113CE, 0x113CE, "Mn", "Tutg", 0}, {0x113CF, 0x113CF, "Mc", "Tutg", 0},
    {0x113D0, 0x113D0, "Mn", "Tutg", 0}, {0x113D1, 0x113D1, "Lo", "Tutg", 1}, {0x113D2, 0x113D2, "Mn", "Tutg", 0},
    {0x113D3, 0x113D3, "Lo", "Tutg", 1}, {0x113D4, 0x113D5, "Po", "Tutg", 0}, {0x113D7, 0x113D8, "Po", "Tutg", 0},
    {0x113E1, 0x113E2, "Mn", "Tutg", 0}, {0x116D0, 0x116E3, "Nd", "Mymr", 0}, {0x1171E, 0x1171E, "Mc", "", 1},
    {0x11B00, 0x11B09, "Po", "Deva", 0}, {0x11BC0, 0x11BE0, "Lo", "Sunu", 1}, {0x11BE1, 0x11BE1, "Po", "Sunu", 0},
    {0x11BF0, 0x11BF9, "Nd", "Sunu", 0}, {0x11F00, 0x11F01, "Mn", "Kawi", 1}, {0x11F02, 0x11F02, "Lo", "Kawi", 1},
    {0x11F03, 0x11F03, "Mc", "Kawi", 1}, {0x11F04, 0x11F10, "Lo", "Kawi", 1}, {0x11F12, 0x11F33, "Lo", "Kawi", 1},
    {0x11F34, 0x11F35, "Mc", "Kawi", 1}, {0x11F36, 0x11F3A, "Mn", "Kawi", 1}, {0x11F3E, 0x11F3F, "Mc", "Kawi", 1},
    {0x11F40, 0x11F40, "Mn", "Kawi", 1}, {0x11F41, 0x11F41, "Mc", "Kawi", 0}, {0x11F42, 0x11F42, "Mn", "Kawi", 0},
    {0x11F43, 0x11F4F, "Po", "Kawi", 0}, {0x11F50, 0x11F59, "Nd", "Kawi", 0}, {0x11F5A, 0x11F5A, "Mn", "Kawi", 0},
    {0x1342F, 0x1342F, "Lo", "Egyp", 1}, {0x13439, 0x1343F, "Cf", "Egyp", 0}, {0x13440, 0x13440, "Mn", "Egyp", 0},
    {0x13441, 0x13446, "Lo", "Egyp", 1}, {0x13447, 0x13455, "Mn", "Egyp", 0}, {0x13460, 0x143FA, "Lo", "Egyp", 1},
    {0x16100, 0x1611D, "Lo", "Gukh", 1}, {0x1611E, 0x16129, "Mn", "Gukh", 1}, {0x1612A, 0x1612C, "Mc", "Gukh", 1},
    {0x1612D, 0x1612E, "Mn", "Gukh", 1}, {0x1612F, 0x1612F, "Mn", "Gukh", 0}, {0x16130, 0x16139, "Nd", "Gukh", 0},
    {0x16D40, 0x16D42, "Lm", "Krai", 1}, {0x16D43, 0x16D6A, "Lo", "Krai", 1}, {0x16D6B, 0x16D6C, "Lm", "Krai", 1},
    {0x16D6D, 0x16D6F, "Po", "Krai", 0}, {0x16D70, 0x16D79, "Nd", "Krai", 0}, {0x18CFF, 0x18CFF, "Lo", "Kits", 1},
    {0x1B132, 0x1B132, "Lo", "Hira", 1}, {0x1B155, 0x1B155, "Lo", "Kana", 1}, {0x1CC00, 0x1CCEF, "So", "Zyyy", 0},
    {0x1CCF0, 0x1CCF9, "Nd", "Zyyy", 0}, {0x1CD00, 0x1CEB3, "So", "Zyyy", 0}, {0x1D2C0, 0x1D2D3, "No", "Zyyy", 0},
    {0x1DF25, 0x1DF2A, "Ll", "Latn", 1}, {0x1E030, 0x1E06D, "Lm", "Cyrl", 1}, {0x1E08F, 0x1E08F, "Mn", "Cyrl", 1},
    {0x1E4D0, 0x1E4EA, "Lo", "Nagm", 1}, {0x1E4EB, 0x1E4EB, "Lm", "Nagm", 1}, {0x1E4EC, 0x1E4EF, "Mn", "Nagm", 0},
    {0x1E4F0, 0x1E4F9, "Nd", "Nagm", 0}, {0x1E5D0, 0x1E5ED, "Lo", "Onao", 1}, {0x1E5EE, 0x1E5EF, "Mn", "Onao", 0},
    {0x1E5F0, 0x1E5F0, "Lo", "Onao", 1}, {0x1E5F1, 0x1E5FA, "Nd", "Onao", 0}, {0x1E5FF, 0x1E5FF, "Po", "Onao", 0},
    {0x1F6DC, 0x1F6DC, "So", "Zyyy", 0}, {0x1F774, 0x1F776, "So", "Zyyy", 0}, {0x1F77B, 0x1F77F, "So", "Zyyy", 0},
    {0x1F7D9, 0x1F7D9, "So", "Zyyy", 0}, {0x1F8B2, 0x1F8BB, "So", "Zyyy", 0}, {0x1F8C0, 0x1F8C1, "So", "Zyyy", 0},
    {0x1FA75, 0x1FA77, "So", "Zyyy", 0}, {0x1FA87, 0x1FA89, "So", "Zyyy", 0}, {0x1FA8F, 0x1FA8F, "So", "Zyyy", 0},
    {0x1FAAD, 0x1FAAF, "So", "Zyyy", 0}, {0x1FABB, 0x1FABF, "So", "Zyyy", 0}, {0x1FAC6, 0x1FAC6, "So", "Zyyy", 0},
    {0x1FACE, 0x1FACF, "So", "Zyyy", 0}, {0x1FADA, 0x1FADC, "So", "Zyyy", 0}, {0x1FADF, 0x1FADF, "So", "Zyyy", 0},
    {0x1FAE8, 0x1FAE9, "So", "Zyyy", 0}, {0x1FAF7, 0x1FAF8, "So", "Zyyy", 0}, {0x1FBCB, 0x1FBEF, "So", "Zyyy", 0},
    {0x2B739, 0x2B739, "Lo", "Hani", 1}, {0x2EBF0, 0x2EE5D, "Lo", "Hani", 1}, {0x31350, 0x323AF, "Lo", "Hani", 1},
    // clang-format on
};

constexpr std::pair<std::string_view, std::string_view> kScripts[] = {
    {"arabic", "Arab"},   {"balinese", "Bali"},   {"common", "Zyyy"},
    {"cyrillic", "Cyrl"}, {"devanagari", "Deva"}, {"egyptianhieroglyphs", "Egyp"},
    {"han", "Hani"},      {"hiragana", "Hira"},   {"kannada", "Knda"},
    {"katakana", "Kana"}, {"khojki", "Khoj"},     {"lao", "Laoo"},
    {"latin", "Latn"},    {"myanmar", "Mymr"}};

/// For each block of 256 characters: whether one of the ranges is in it.
constexpr auto kBlocks = [] {
  std::array<bool, 0x1100> blocks{};
  for (const Range& range : kRanges)
    for (uint32_t block = range.first >> 8; block <= range.last >> 8; ++block) blocks[block] = true;
  return blocks;
}();

bool is_recent(uint32_t character) {
  if (!kBlocks[character >> 8]) return false;
  const Range* range = std::ranges::lower_bound(kRanges, character, {}, &Range::last);
  return range != std::end(kRanges) && character >= range->first;
}

}  // namespace

bool has_recent_characters(std::string_view text) {
  const auto* byte = reinterpret_cast<const uint8_t*>(text.data());
  for (const uint8_t* const end = byte + text.size(); byte < end;) {
    if (*byte < 0xC0) {
      ++byte;
    } else if (*byte < 0xE0) {
      if (is_recent((byte[0] & 31u) << 6 | (byte[1] & 63u))) return true;
      byte += 2;
    } else if (*byte < 0xF0) {
      if (is_recent((byte[0] & 15u) << 12 | (byte[1] & 63u) << 6 | (byte[2] & 63u))) return true;
      byte += 3;
    } else {
      if (is_recent((byte[0] & 7u) << 18 | (byte[1] & 63u) << 12 | (byte[2] & 63u) << 6 | (byte[3] & 63u))) return true;
      byte += 4;
    }
  }
  return false;
}

std::string recent_characters(std::string_view property) {
  const auto* longer = std::ranges::find(kScripts, property, [](const auto& pair) { return pair.first; });
  std::string script(longer == std::end(kScripts) ? property : longer->second);  // "hani" or "Hani"
  if (!script.empty()) script[0] = static_cast<char>(script[0] & ~32);
  std::string ranges;
  for (const Range& range : kRanges) {
    const bool matches = (property == "any" && !range.script.empty()) ||
                         (property == "alphabetic" && range.alphabetic) ||
                         (property.size() <= 2 && range.category.starts_with(property)) ||
                         (property.size() > 2 && range.script == script);
    if (matches) ranges += format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
  }
  return ranges;
}

}  // namespace trainer::data
