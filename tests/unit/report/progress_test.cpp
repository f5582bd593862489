#include "report/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

namespace trainer::report {
namespace {

using config::ProgressMode;

/// A screen of one growing text, a clock moved by hand and a width that may change.
struct FakeTerminal {
  std::string text;
  double time = 100;
  int width = 120;
  bool is_tty = true, utf8 = false;

  Terminal terminal() {
    return {.write = [this](const std::string& more) { text += more; },
            .width = [this] { return width; },
            .clock = [this] { return time; },
            .is_tty = is_tty,
            .utf8 = utf8};
  }
  /// The text that stands in the last line after all redraws.
  std::string last_line() const {
    const size_t start = text.rfind('\r');
    std::string line = start == std::string::npos ? text : text.substr(start + 1);
    if (line.rfind("\x1b[K", 0) == 0) line.erase(0, 3);
    return line;
  }
};

StepReport report_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = 3.21449;
  report.lr = 2.9e-4;
  report.grad_norm = 0.8123;
  report.tokens_per_s = 12345;
  report.step_ms = 81.25;
  report.mfu = 0.4123;
  return report;
}

TEST(Progress, DrawsOneLineWithTheTimeThatIsLeft) {
  FakeTerminal screen;
  screen.width = 140;
  Progress progress(ProgressMode::automatic, 0, 1000, 10, screen.terminal());
  EXPECT_TRUE(progress.redrawing());
  screen.time += 50;
  progress.step(report_of(250));  // 250 steps in 50 s: 750 more in 150 s
  EXPECT_EQ(
      screen.last_line(),
      "step 250/1000 ========---------------------- 25%  loss 3.2145  lr 2.90e-04  12.3k tokens/s  mfu 41.2 %  50 s  "
      "2m30s left");
  EXPECT_EQ(screen.text.find('\n'), std::string::npos);
}

TEST(Progress, CountsTheTimeLeftFromTheStepsOfThisProcess) {
  FakeTerminal screen;
  Progress progress(ProgressMode::on, 900, 1000, 10, screen.terminal());
  screen.time += 30;
  progress.step(report_of(950));
  EXPECT_NE(screen.last_line().find("30 s left"), std::string::npos) << screen.last_line();
}

TEST(Progress, NeverFillsTheLastColumnWhateverTheWidth) {
  FakeTerminal screen;
  Progress progress(ProgressMode::on, 0, 100000, 10, screen.terminal());
  for (int width = 1; width <= 200; ++width) {
    screen.width = width;
    screen.time += 1;
    progress.step(report_of(50000));
    EXPECT_LE(screen.last_line().size(), static_cast<size_t>(width - 1)) << screen.last_line();
    if (width >= 46) {
      EXPECT_NE(screen.last_line().find("loss 3.2145"), std::string::npos) << width;
    }
  }
  EXPECT_NE(screen.last_line().find("mfu 41.2 %"), std::string::npos);
}

TEST(Progress, DrawsAtMostTenTimesASecondButAlwaysTheLastStep) {
  FakeTerminal screen;
  Progress progress(ProgressMode::on, 0, 1000, 10, screen.terminal());
  for (int64_t step = 1; step <= 999; ++step) {
    screen.time += 0.001;
    progress.step(report_of(step));
  }
  const auto draws = std::count(screen.text.begin(), screen.text.end(), '\r');
  EXPECT_GE(draws, 9);
  EXPECT_LE(draws, 11);
  progress.step(report_of(1000));
  EXPECT_NE(screen.last_line().find("step 1000/1000"), std::string::npos);
  EXPECT_NE(screen.last_line().find("100%"), std::string::npos);
  EXPECT_EQ(screen.last_line().find("left"), std::string::npos);
}

TEST(Progress, LogLinesAppearAboveTheBarUntorn) {
  FakeTerminal screen;
  {
    Progress progress(ProgressMode::on, 0, 100, 10, screen.terminal());
    progress.step(report_of(1));
    const std::string line = screen.last_line();
    screen.text.clear();
    log::warning("disk is {} % full", 91);
    EXPECT_EQ(screen.text, "\r\x1b[Kwarning: disk is 91 % full\n" + line);
    screen.text.clear();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) log::info("line of a thread");
      });
    }
    for (int i = 2; i < 50; ++i) {
      progress.step(report_of(i));
    }
    for (std::thread& thread : threads) thread.join();
    size_t lines = 0;
    for (size_t at = 0; (at = screen.text.find("\r\x1b[Kline of a thread\n", at)) != std::string::npos; ++at) ++lines;
    EXPECT_EQ(lines, 200);
  }
  EXPECT_EQ(screen.text.back(), '\n') << "the last state stays on the screen";
  const size_t before = screen.text.size();
  log::Sink mine = [](log::Level, const std::string&) {};
  log::set_sink(log::set_sink(mine));
  EXPECT_EQ(screen.text.size(), before) << "the sink was given back";
}

TEST(Progress, ShowsWhatItIsBusyWithBetweenSteps) {
  FakeTerminal screen;
  Progress progress(ProgressMode::on, 0, 100, 10, screen.terminal());
  progress.step(report_of(1));
  screen.time += 1;
  progress.status("evaluating 3/20");
  EXPECT_NE(screen.last_line().find("evaluating 3/20"), std::string::npos);
  EXPECT_EQ(screen.last_line().find("loss"), std::string::npos);
  screen.time += 1;
  progress.step(report_of(2));
  EXPECT_EQ(screen.last_line().find("evaluating"), std::string::npos);
}

TEST(Progress, UsesBoxCharactersWhereTheLocaleHasThem) {
  FakeTerminal screen;
  screen.utf8 = true;
  Progress progress(ProgressMode::on, 0, 2, 10, screen.terminal());
  progress.step(report_of(1));
  EXPECT_NE(screen.last_line().find("━─"), std::string::npos);
}

TEST(Progress, WritesPlainLinesAtTheFirstTheLastAndEveryIntervalStep) {
  FakeTerminal screen;
  screen.is_tty = false;
  {
    Progress progress(ProgressMode::automatic, 0, 25, 10, screen.terminal());
    EXPECT_FALSE(progress.redrawing());
    for (int64_t step = 1; step <= 25; ++step) {
      screen.time += 2;
      progress.step(report_of(step));
      progress.status("evaluating");
    }
  }
  const std::string fields = "  loss 3.2145  lr 2.90e-04  norm 0.812  12.3k tokens/s  81.2 ms  mfu 41.2 %";
  EXPECT_EQ(screen.text, "step 1/25" + fields + "  48 s left\nstep 10/25" + fields + "  30 s left\nstep 20/25" +
                             fields + "  10 s left\nstep 25/25" + fields + "\n");
}

TEST(Progress, ModeOffMeansPlainLinesOnATerminalToo) {
  FakeTerminal screen;
  Progress progress(ProgressMode::off, 0, 5, 0, screen.terminal());
  EXPECT_FALSE(progress.redrawing());
  for (int64_t step = 1; step <= 4; ++step) progress.step(report_of(step));
  EXPECT_EQ(std::count(screen.text.begin(), screen.text.end(), '\n'), 1) << "interval 0: the first step only";
  EXPECT_EQ(screen.text.find('\r'), std::string::npos);
}

TEST(Progress, SaysSoWhenTheLossIsNotFiniteAndLeavesOutWhatIsUnknown) {
  FakeTerminal screen;
  screen.is_tty = false;
  Progress progress(ProgressMode::automatic, 0, 5, 1, screen.terminal());
  StepReport report;
  report.step = 1;
  report.loss = std::nan("");
  report.skipped = true;
  progress.step(report);
  EXPECT_EQ(screen.text, "step 1/5  loss not finite  skipped  - tokens/s  0.0 s left\n");
}

}  // namespace
}  // namespace trainer::report
