#include "cli/stop_text.h"

#include <gtest/gtest.h>

namespace trainer::cli {
namespace {

/// Passes `text` in pieces of `length` bytes until a stop text occurs, and returns the output.
std::string passed(const std::string& text, const std::vector<std::string>& stops, size_t length, bool& met) {
  StopText filter(stops);
  std::string out;
  for (size_t at = 0; at < text.size() && !filter.met(); at += length) out += filter.pass(text.substr(at, length));
  met = filter.met();
  return out + filter.rest();
}

TEST(StopText, PassesWhatComesBeforeItHoweverItIsCut) {
  const std::string text = "aab aaab aabaab\nUser: more";
  for (const std::string stop : {"a", "aab", "aaab", "baa", "\nUser:", "more", "e", "none", "morex", "aaaa"}) {
    const size_t at = text.find(stop);
    for (size_t length = 1; length <= text.size(); ++length) {
      bool met = false;
      EXPECT_EQ(passed(text, {stop}, length, met), text.substr(0, at)) << stop << " in pieces of " << length;
      EXPECT_EQ(met, at != std::string::npos);
    }
  }
}

TEST(StopText, OfSeveralTheOneThatIsCompleteFirstEndsTheText) {
  const std::string text = "xabcdy";
  const std::pair<std::vector<std::string>, std::string> cases[] = {{{"abcd", "c"}, "xab"},  {{"c", "abcd"}, "xab"},
                                                                    {{"abc", "c"}, "x"},     {{"none", "dy"}, "xabc"},
                                                                    {{"abce", "bcd"}, "xa"}, {{"abce", "nor"}, text}};
  for (const auto& [stops, expected] : cases)
    for (size_t length = 1; length <= text.size(); ++length) {
      bool met = false;
      EXPECT_EQ(passed(text, stops, length, met), expected) << stops.front() << " in pieces of " << length;
      EXPECT_EQ(met, expected != text);
    }
}

TEST(StopText, PassesNothingOnAfterTheStopText) {
  StopText filter({" "});
  EXPECT_EQ(filter.pass("a b"), "a");
  EXPECT_TRUE(filter.met());
  EXPECT_EQ(filter.pass("c"), "") << "such as the rest of a character that spans tokens";
  EXPECT_EQ(filter.rest(), "");
  EXPECT_TRUE(filter.met());
}

TEST(StopText, HoldsBackNoMoreThanItMust) {
  StopText filter({"###"});
  EXPECT_EQ(filter.pass("abc"), "abc");
  EXPECT_EQ(filter.pass("d#"), "d");
  EXPECT_EQ(filter.pass("e"), "#e");
  for (const std::vector<std::string>& none : {std::vector<std::string>{}, {""}}) {
    StopText nothing(none);
    EXPECT_EQ(nothing.pass("abc"), "abc");
    EXPECT_FALSE(nothing.met());
  }
}

}  // namespace
}  // namespace trainer::cli
