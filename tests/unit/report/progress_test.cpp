#include "report/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "report/status_line.h"

namespace trainer::report {
namespace {

using config::ProgressMode;

/// A terminal that collects its output, with a clock set by the test and a width that may change.
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
  /// Returns the text of the last line after all redraws.
  std::string last_line() const {
    const size_t start = text.rfind('\r');
    std::string line = start == std::string::npos ? text : text.substr(start + 1);
    if (line.rfind("\x1b[K", 0) == 0) line.erase(0, 3);
    return line;
  }
};

StepReport report_of(int64_t step) {
  StepReport report{.step = step, .loss = 3.21449, .lr = 2.9e-4, .grad_norm = 0.8123};
  report.tokens_per_s = 12345;
  report.step_ms = 81.25;
  report.mfu = 0.4123;
  return report;
}

TEST(Progress, DrawsOneLineWithTheTimeThatIsLeft) {
  FakeTerminal screen;
  screen.width = 140;
  {
    Progress progress(ProgressMode::automatic, 0, 1000, 10, screen.terminal());
    screen.time += 50;
    progress.step(report_of(250));  // 250 steps in 50 s: 750 more in 150 s
  }
  for (const char* text : {"step 250/1000 ========---------------------- 25%", "loss 3.2145", "lr 2.90e-04",
                           "12.3k tokens/s", "mfu 41.2 %", "  50 s", "2m30s left"})
    EXPECT_NE(screen.text.find(text), std::string::npos) << text << "\n" << screen.text;
  EXPECT_EQ(std::ranges::count(screen.text, '\n'), 1) << "the last state stays on the screen";
  screen.utf8 = true;
  Progress resumed(ProgressMode::on, 900, 1000, 10, screen.terminal());
  screen.time += 30;
  resumed.step(report_of(950));
  EXPECT_NE(screen.last_line().find("30 s left"), std::string::npos) << "of this process's steps";
  EXPECT_NE(screen.last_line().find("━─"), std::string::npos);
  screen.time += 1;
  resumed.status("evaluating 3/20");
  EXPECT_NE(screen.last_line().find("evaluating 3/20"), std::string::npos);
  EXPECT_EQ(screen.last_line().find("loss"), std::string::npos);
}

TEST(Progress, NeverFillsTheLastColumnWhateverTheWidth) {
  FakeTerminal screen;
  Progress progress(ProgressMode::on, 0, 100000, 10, screen.terminal());
  for (int width = 1; width <= 200; ++width) {
    screen.width = width;
    screen.time += 1;
    progress.step(report_of(50000));
    EXPECT_LE(screen.last_line().size(), static_cast<size_t>(width - 1)) << screen.last_line();
    EXPECT_TRUE(width < 46 || screen.last_line().find("loss 3.2145") != std::string::npos) << width;
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
  EXPECT_NEAR(std::ranges::count(screen.text, '\r'), 10, 1);
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
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) log::info("line of a thread");
      });
    for (int i = 2; i < 50; ++i) progress.step(report_of(i));
    for (std::thread& thread : threads) thread.join();
    size_t lines = 0;
    for (size_t at = 0; (at = screen.text.find("\r\x1b[Kline of a thread\n", at)) != std::string::npos; ++at) ++lines;
    EXPECT_EQ(lines, 200);
  }
  const size_t before = screen.text.size();
  log::info("the sink was given back");
  EXPECT_EQ(screen.text.size(), before);
}

TEST(Progress, WritesPlainLinesAtTheFirstTheLastAndEveryIntervalStep) {
  FakeTerminal screen;
  const auto run = [&](ProgressMode mode, int64_t interval) {
    Progress progress(mode, 0, 25, interval, screen.terminal());
    for (int64_t step = 1; step <= 25; ++step) {
      screen.time += 2;
      progress.step(report_of(step));
      progress.status("evaluating");
    }
    EXPECT_EQ(screen.text.find('\r'), std::string::npos);
    return std::exchange(screen.text, "");
  };
  const std::string fields = "  loss 3.2145  lr 2.90e-04  norm 0.812  12.3k tokens/s  81.2 ms  mfu 41.2 %";
  const std::string first = "step 1/25" + fields + "  48 s left\n", last = "step 25/25" + fields + "\n";
  EXPECT_EQ(run(ProgressMode::off, 0), first + last) << "on a terminal too";
  screen.is_tty = false;
  EXPECT_EQ(run(ProgressMode::automatic, 10),
            first + "step 10/25" + fields + "  30 s left\nstep 20/25" + fields + "  10 s left\n" + last);
}

TEST(Progress, ReportsTheLoadOfExperts) {
  FakeTerminal screen;
  screen.is_tty = false;
  Progress progress(ProgressMode::automatic, 0, 5, 1, screen.terminal());
  StepReport report = report_of(1);
  report.experts = ExpertsReport{.load_max = 1.337};
  progress.step(report);
  EXPECT_NE(screen.text.find("norm 0.812  load 1.34  12.3k"), std::string::npos) << screen.text;
}

TEST(Progress, ReportsALossThatIsNotFiniteAndOmitsWhatIsUnknown) {
  FakeTerminal screen;
  screen.is_tty = false;
  Progress progress(ProgressMode::automatic, 0, 5, 1, screen.terminal());
  StepReport report{.step = 1};
  report.skipped = true;
  progress.step(report);
  EXPECT_EQ(screen.text, "step 1/5  loss not finite  skipped  - tokens/s  0.0 s left\n");
}

/// Log lines go to the screen too.
class StatusLines : public testing::Test {
 protected:
  StatusLines() {
    previous_ = log::set_sink([this](log::Level, const std::string& line) { screen_.text += line + "\n"; });
  }
  ~StatusLines() override { log::set_sink(previous_); }
  FakeTerminal screen_;
  log::Sink previous_;
};

TEST_F(StatusLines, AreRedrawnInPlaceOnATerminalAndGoneAtTheEnd) {
  {
    StatusLine line(screen_.terminal());
    line.show("evaluating: 0 of 8", 0, 8);
    EXPECT_EQ(screen_.text, "") << "a job done in a moment shows nothing";
    screen_.time += 5;
    line.show("evaluating: 2 of 8", 2, 8);
    screen_.time += 0.05;
    line.show("evaluating: 3 of 8", 3, 8);
    EXPECT_EQ(screen_.text, "evaluating: 2 of 8, 15 s left");
    screen_.time += 5.05;
    line.show("evaluating: 4 of 8", 4, 8);
  }
  EXPECT_EQ(screen_.text, "evaluating: 2 of 8, 15 s left\r\x1b[Kevaluating: 4 of 8, 10 s left\r\x1b[K");
}

TEST_F(StatusLines, GiveWayToLogLinesAndNeverFillTheLastColumn) {
  screen_.width = 5;
  {
    StatusLine line(screen_.terminal());
    screen_.time += 1;
    line.show("busy with", 0, 1);
    log::warning("look");
  }
  log::warning("again");
  EXPECT_EQ(screen_.text, "busy\r\x1b[Klook\nagain\n");
}

TEST_F(StatusLines, AreLogLinesEveryTenSecondsElsewhere) {
  screen_.is_tty = false;
  StatusLine line(screen_.terminal());
  for (int second = 0; second < 25; ++second) {
    line.show("tokenizing", second, 100);
    screen_.time += 1;
  }
  EXPECT_EQ(screen_.text, "tokenizing, 1m30s left\ntokenizing, 1m20s left\n");
}

}  // namespace
}  // namespace trainer::report
