#include "data/split_pattern.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;
using nlohmann::json;

/// Returns the sizes in bytes of the pieces into which a list of patterns splits a text, one after another.
std::vector<size_t> sizes_of(const std::vector<std::string>& steps, std::string_view text) {
  if (steps.empty()) return {text.size()};
  SplitPattern::Matcher matcher{SplitPattern(steps[0], "x")};
  std::vector<size_t> sizes;
  const auto add = [&](size_t begin, size_t end) {
    if (begin == end) return;
    for (const size_t size : sizes_of({steps.begin() + 1, steps.end()}, text.substr(begin, end - begin)))
      sizes.push_back(size);
  };
  size_t at = 0, begin = 0, end = 0;
  matcher.start(text);
  while (matcher.next(begin, end)) {
    add(at, begin);
    add(begin, end);
    at = end;
  }
  add(at, text.size());
  return sizes;
}

// Splits of the tokenizers library 0.23.3 (Oniguruma 6.9.10, Unicode 16), written by tests/cli/split_patterns.py.
TEST(SplitPattern, SplitsAsTheTokenizersLibrary) {
  std::istringstream lines(read_file(fs::path(TRAINER_SOURCE_DIR) / "tests/unit/data/split_patterns.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json row = json::parse(line);
    EXPECT_EQ(json(sizes_of(row["steps"], row["text"].get<std::string>())), row["sizes"]) << row["steps"];
  }
  EXPECT_EQ(count, 78);
}

// The numbers of characters that the same library finds, and the sums of their codes.
TEST(SplitPattern, KnowsTheCharactersOfUnicode16) {
  struct Case {
    const char* pattern;
    int64_t count, sum;
  };
  std::string text;  // all characters, with a space after each, which none of the patterns matches
  for (uint32_t code = 0x80; code < 0x110000; ++code) {
    if (code == 0xD800) code = 0xE000;
    if (code >= 0x800) {
      if (code >= 0x10000)
        (text += static_cast<char>(0xF0 | code >> 18)) += static_cast<char>(0x80 | (code >> 12 & 63));
      else
        text += static_cast<char>(0xE0 | code >> 12);
      text += static_cast<char>(0x80 | (code >> 6 & 63));
    } else {
      text += static_cast<char>(0xC0 | code >> 6);
    }
    (text += static_cast<char>(0x80 | (code & 63))) += ' ';
  }
  for (const auto& [pattern, count, sum] : std::vector<Case>{
           {R"(\p{L})", 140976, 15240924396},
           {R"(\p{Lu})", 1832, 86922342},
           {R"(\p{Ll})", 2232, 104710276},
           {R"(\p{Lt})", 31, 220514},
           {R"(\p{Lm})", 404, 19538368},
           {R"(\p{Lo})", 136477, 15029532896},
           {R"(\p{M})", 2501, 316771473},
           {R"(\p{N})", 1901, 110651370},
           {R"(\p{Nd})", 750, 39890925},
           {R"(\p{P})", 832, 28833631},
           {R"(\p{S})", 8505, 620169749},
           {R"(\p{Cf})", 170, 92312063},
           {R"(\p{Cn})", 819533, 466275017146},
           {R"(\p{Han})", 99030, 12573883150},
           {R"(\p{Latin})", 1435, 27416882},
           {R"(\p{Arabic})", 1373, 71326622},
           {R"(\w)", 144608, 15621624606},
           {R"([\w])", 144602, 15621623497},
           {R"(\p{Alpha})", 142707, 15314417045},
           {R"([[:punct:]])", 9337, 649003380},
           {R"([^\s\p{L}\p{N}])", 969040, 605155149487},
       }) {
    SplitPattern::Matcher matcher{SplitPattern(pattern, "x")};
    matcher.start(text);
    int64_t found = 0, codes = 0;
    for (size_t begin = 0, end = 0; matcher.next(begin, end); ++found) {
      uint32_t code = static_cast<uint8_t>(text[begin]) & (0xFFu >> (end - begin + 1));
      for (size_t i = begin + 1; i < end; ++i) code = code << 6 | (static_cast<uint8_t>(text[i]) & 63u);
      codes += code;
    }
    EXPECT_EQ(found, count) << pattern;
    EXPECT_EQ(codes, sum) << pattern;
  }
}

TEST(SplitPattern, MatchesLongTextWithNestedGroups) {
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(sizes_of({R"([\p{L}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+)"}, text), (std::vector<size_t>{text.size()}));
}

TEST(SplitPattern, RefusesWhatItCannotExpress) {
  for (const auto& [pattern, part] : std::vector<std::pair<const char*, const char*>>{
           {R"((\w)\1)", "\\1 is not supported"},
           {R"((?<a>x)\k<a>)", "\\k is not supported"},
           {R"(\Ga)", "\\G is not supported"},
           {R"(a\Kb)", "\\K is not supported"},
           {R"(\X)", "\\X is not supported"},
           {R"((?x: a))", "(?x is not supported"},
           {R"((?~ab))", "(?~ is not supported"},
           {R"((*FAIL))", "(* is not supported"},
           {R"(\pL)", "\\p without { is not supported"},
           {R"([[:upper:]])", "property upper is not supported"},
           {R"((?i:\p{Lu}))", "a property without regard to case"},
           {R"((?i:[\w]$))", "a set of letters without regard to case"},
           {R"((?i:[\Sa]))", "a set of letters without regard to case"},
           {R"((?i:[^a]))", "a negated class without regard to case"},
           {R"((?i:ß))", "a character outside ASCII without regard to case"},
           {R"((?i:stop))", "st without regard to case"},
           {R"((?i:s(?#x)(?:s{1})))", "ss without regard to case"},
           {R"((?i:[a-z&&b]))", "&& without regard to case"},
           {R"([[:han:]])", "[:han:] is not supported"},
           {R"([])", "a class that begins with ]"},
           {R"([a&&])", "an empty class"},
           {R"(a{3,2})", "{3,2} is not supported"},
           {R"(\p{Nonsense})", "\\p{Nonsense}: unknown property"},
           {R"((a)", "missing closing parenthesis"},
           {R"(a))", "closing parenthesis without an opening one"},
           {R"([a)", "class without end"},
           {R"([z-a])", "range in reverse order"},
           {R"(*a)", "nothing to repeat"},
           {R"(a|{2})", "nothing to repeat"},
           {R"(\)", "ends with a backslash"},
           {R"(\x{110000})", "not the number of a character"},
       })
    expect_error(Code::data, {"x: pattern ", part}, [&] { SplitPattern(pattern, "x"); });
  const std::string deep(5000, '(');
  expect_error(Code::data, {"nesting of more than 100"}, [&] { SplitPattern(deep, "x"); });
}

}  // namespace
}  // namespace trainer::data
