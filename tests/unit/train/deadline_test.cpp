#include "train/deadline.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer::train {
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

TEST(Duration, RefusesWhatIsNoDurationAsAUsageErrorThatQuotesIt) {
  for (const char* text : {"", "h", "1x", "1h30", "30m1h", "1h1h", "-5", "-1h", "nan", "inf", "0", "0s", "1h ", " 1h",
                           "1e3", "1:30", "10 s"}) {
    try {
      parse_duration(text);
      ADD_FAILURE() << '"' << text << "\" was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::usage);
      EXPECT_NE(std::string(error.what()).find("\"" + std::string(text) + "\""), std::string::npos) << error.what();
    }
  }
}

TEST(Duration, PrintsTwoUnitsAtMost) {
  EXPECT_EQ(format_duration(0.04), "0.0 s");
  EXPECT_EQ(format_duration(8.24), "8.2 s");
  EXPECT_EQ(format_duration(9.97), "10 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(7620), "2h07m");
  EXPECT_EQ(format_duration(273600), "3d04h");
  EXPECT_EQ(format_duration(-1), "0.0 s");
  EXPECT_EQ(format_duration(1.0 / 0.0), "?");
}

TEST(Deadline, PassesAfterItsTimeAndNeverByDefault) {
  EXPECT_FALSE(Deadline().passed());
  EXPECT_FALSE(Deadline(1000).passed());
  EXPECT_NEAR(Deadline(1000).seconds_left(), 1000, 10);
  EXPECT_TRUE(Deadline(-1e-3).passed());
}

}  // namespace
}  // namespace trainer::train
