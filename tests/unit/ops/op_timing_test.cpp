#include "ops/op_timing.h"

#include <gtest/gtest.h>

#include "device/device.h"

namespace trainer::ops {
namespace {

/// Counts its calls, except in dry runs, which only plan.
struct Counted {
  int64_t* calls;
};
void run(Exec& ex, const Counted& op) {
  if (!ex.device.dry()) ++*op.calls;
}

class OpTiming : public testing::Test {
 protected:
  double time(const Timing& timing) { return seconds_of(ex_, Counted{&calls_}, timing); }
  device::CpuDevice cpu_{1};
  Arena arena_{cpu_, Arena::Mode::heap};
  Meter meter_;
  Exec ex_{cpu_, arena_, meter_};
  int64_t calls_ = 0;
};

TEST_F(OpTiming, RepeatsAfterOneCallThatDoesNotCount) {
  EXPECT_GE(time({.repeats = 3}), 0);
  EXPECT_EQ(calls_, 4);
}

TEST_F(OpTiming, FillsItsWindows) {
  const double start = now_seconds(), mean = time({.repeats = 2, .window = 0.005});
  const double passed = now_seconds() - start;
  EXPECT_GE(passed, 0.01);
  EXPECT_GT(calls_, 5) << "calls of nothing";
  EXPECT_LE(mean * static_cast<double>(calls_ - 1), passed);
  EXPECT_GE(mean * static_cast<double>(calls_ - 1), 0.01);
}

TEST_F(OpTiming, KeepsTheWindowOfTheSlowestRank) {
  int calls = 0;
  const double start = now_seconds();
  time({.repeats = 1, .window = 0.001, .largest_on_any_rank = [&](double own) {
          ++calls;
          EXPECT_GT(own, 0);
          return 0.004;
        }});
  EXPECT_EQ(calls, 1);
  EXPECT_GE(now_seconds() - start, 5 * 0.004);
}

}  // namespace
}  // namespace trainer::ops
