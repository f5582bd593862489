#include "device/power.h"

#include <gtest/gtest.h>

namespace trainer::device {
namespace {

TEST(PowerMeter, ReadsTheRequestedDevice) {
  PowerMeter meter("0000:17:00.0", TRAINER_FAKE_NVML);
  const auto reading = meter.read();
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->watts, 612.5);
  EXPECT_EQ(reading->sm_mhz, 1755);
  EXPECT_EQ(reading->celsius, 61);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(meter.recent().value().watts, 612.5);
}

TEST(PowerMeter, HasNothingToReportOfAnotherDeviceOrWithoutTheLibrary) {
  EXPECT_FALSE(PowerMeter("0000:18:00.0", TRAINER_FAKE_NVML).read().has_value());
  EXPECT_FALSE(PowerMeter("0000:17:00.0", "libno-such-library.so.1").read().has_value());
}

}  // namespace
}  // namespace trainer::device
