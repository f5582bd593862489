#include "run/deadline.h"

#include "rigs/messages.h"

namespace trainer::run {
namespace {

TEST(Duration, ReadsUnitsAndPlainSeconds) {
  EXPECT_EQ(parse_duration("23h50m"), 23 * 3600 + 50 * 60);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("1h"), 3600);
  EXPECT_EQ(parse_duration("5400"), 5400);
  EXPECT_EQ(parse_duration("1d12h"), 129600);
  EXPECT_EQ(parse_duration("1.5h"), 5400);
  EXPECT_EQ(parse_duration("0.25"), 0.25);
  EXPECT_EQ(parse_duration("1h0m5s"), 3605);
}

TEST(Duration, RejectsOtherTextAsAUsageErrorThatQuotesIt) {
  for (const char* text : {"", "h", "1x", "1h30", "30m1h", "1h1h", "-5", "-1h", "nan", "inf", "0", "0s", "1h ", " 1h",
                           "1e3", "1:30", "10 s"})
    tests::expect_error(Code::usage, {"\"" + std::string(text) + "\""}, [&] { parse_duration(text); });
}

TEST(Deadline, PassesAfterItsTimeAndNeverByDefault) {
  EXPECT_FALSE(Deadline().has_passed());
  EXPECT_FALSE(Deadline(1000).has_passed());
  EXPECT_NEAR(Deadline(1000).seconds_left(), 1000, 10);
  EXPECT_TRUE(Deadline(-1e-3).has_passed());
}

}  // namespace
}  // namespace trainer::run
