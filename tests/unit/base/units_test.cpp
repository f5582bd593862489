#include "base/units.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trainer {
namespace {

TEST(Units, CountsHaveThreeDigits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(3.14159), "3.14");
  EXPECT_EQ(format_count(999.7), "1.00k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(123532032), "124M");
  EXPECT_EQ(format_count(8.03e9), "8.03G");
  EXPECT_EQ(format_count(99960), "100k");
  EXPECT_EQ(format_count(-12345), "-12.3k");
  EXPECT_EQ(format_count(std::nan("")), "-");
}

TEST(Units, BytesAreBinary) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1572864), "1.50 MiB");
  EXPECT_EQ(format_bytes(23.44 * 1024 * 1024 * 1024), "23.4 GiB");
  EXPECT_EQ(format_bytes(1024.0 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes_apart(1 << 20, (1 << 20) + 1), std::pair(std::string("1048576 B"), std::string("1048577 B")));
  EXPECT_EQ(format_bytes_apart(1 << 20, 2 << 20), std::pair(std::string("1.00 MiB"), std::string("2.00 MiB")));
}

TEST(Units, PercentAndNumbers) {
  EXPECT_EQ(format_percent(0.4123), "41.2 %");
  EXPECT_EQ(format_percent(std::nan("")), "-");
  EXPECT_EQ(format_number(3.21449), "3.214");
  EXPECT_EQ(format_number(0.00012), "0.00012");
  EXPECT_EQ(format_number(3e-8), "3e-08");
  EXPECT_EQ(format_number(INFINITY), "-");
}

TEST(Units, DurationsHaveTwoUnitsAtMost) {
  EXPECT_EQ(format_duration(0.04), "0.0 s");
  EXPECT_EQ(format_duration(8.24), "8.2 s");
  EXPECT_EQ(format_duration(9.97), "10 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(7620), "2h07m");
  EXPECT_EQ(format_duration(273600), "3d04h");
  EXPECT_EQ(format_duration(-1), "0.0 s");
  EXPECT_EQ(format_duration(1.0 / 0.0), "-");
}

}  // namespace
}  // namespace trainer
