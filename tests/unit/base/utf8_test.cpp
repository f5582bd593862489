#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace trainer {
namespace {

/// Encodes a code point by the table of RFC 3629.
std::string encoded(uint32_t c) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
}

TEST(Utf8, AcceptsEveryCodePointButSurrogates) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const std::string text = encoded(c);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(utf8_character(text), surrogate ? 0 : text.size()) << c;
  }
}

TEST(Utf8, RejectsOverlongFormsHighCodePointsAndStrayBytes) {
  for (const std::string text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80",
        "\xBF", "\xFF", "\xFE", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xC3(", "\xE2\x28\xA1"}) {
    EXPECT_EQ(utf8_character(text), 0u) << text;
  }
}

TEST(Utf8, TellsHowMuchOfACharacterIsUnfinished) {
  const std::string euro = "\xE2\x82\xAC", smile = "\xF0\x9F\x98\x80";
  EXPECT_EQ(utf8_unfinished(""), 0u);
  EXPECT_EQ(utf8_unfinished("abc"), 0u);
  EXPECT_EQ(utf8_unfinished("a" + euro), 0u);
  EXPECT_EQ(utf8_unfinished("a" + euro.substr(0, 2)), 2u);
  EXPECT_EQ(utf8_unfinished("a" + smile.substr(0, 3)), 3u);
  EXPECT_EQ(utf8_unfinished(smile.substr(0, 1)), 1u);
  EXPECT_EQ(utf8_unfinished("a\x80"), 0u);     // a continuation byte without a first byte
  EXPECT_EQ(utf8_unfinished("\xE0\x80"), 0u);  // overlong: no valid character begins like this
}

TEST(Utf8, RepairsBytesAndCountsThem) {
  std::string text =
      "ab\xFF"
      "c\xE2\x82"
      "d";
  const Utf8Repair repair = utf8_repair(text);
  EXPECT_EQ(text, "ab\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(repair.replaced, 3);
  EXPECT_EQ(repair.first, 2u);
}

TEST(Utf8, RepairedRandomBytesAreValidAndValidTextIsKept) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes, text;
    for (int i = 0; i < round; ++i) {
      bytes += static_cast<char>(random());
      text += encoded(random() % (i % 2 == 0 ? 0x80 : 0xD800));
    }
    utf8_repair(bytes);
    EXPECT_EQ(utf8_first_invalid(bytes), bytes.size());
    const std::string before = text;
    EXPECT_EQ(utf8_repair(text).replaced, 0);
    EXPECT_EQ(text, before);
  }
}

}  // namespace
}  // namespace trainer
