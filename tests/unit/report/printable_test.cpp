#include "report/printable.h"

#include <gtest/gtest.h>

namespace trainer::report {
namespace {

TEST(Printable, LeavesTextAndEscapesWhatTerminalsActOn) {
  EXPECT_EQ(printable("a\tb\nna\xC3\xAFve \xE2\x96\x81\xF0\x9F\x90\x88"),
            "a\tb\nna\xC3\xAFve \xE2\x96\x81\xF0\x9F\x90\x88");
  EXPECT_EQ(printable(std::string("\x1b[31m\x07\r\0\x7f", 9)), "\\x1b[31m\\x07\\x0d\\x00\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m \xC2\xA0"),
            "\\x9b31m \xC2\xA0");
  EXPECT_EQ(printable("a\xFF\xC3"), "a\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(printable(""), "");
}

}  // namespace
}  // namespace trainer::report
