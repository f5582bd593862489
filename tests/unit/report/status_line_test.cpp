#include "report/status_line.h"

#include <gtest/gtest.h>

#include <optional>

namespace trainer::report {
namespace {

class StatusLines : public testing::Test {
 protected:
  StatusLines() {
    previous_ = log::set_sink([this](log::Level, const std::string& line) { written_ += line + "\n"; });
  }
  ~StatusLines() override { log::set_sink(previous_); }

  Terminal terminal(bool is_tty) {
    return {.write = [this](const std::string& text) { written_ += text; },
            .width = [this] { return width_; },
            .clock = [this] { return time_; },
            .is_tty = is_tty};
  }

  std::string written_;
  double time_ = 100;
  int width_ = 80;
  log::Sink previous_;
};

TEST_F(StatusLines, AreRedrawnInPlaceOnATerminalAndGoneAtTheEnd) {
  {
    StatusLine line(terminal(true));
    line.show("evaluating: 0 of 8", 0, 8);
    EXPECT_EQ(written_, "") << "a job done in a moment shows nothing";
    time_ += 5;
    line.show("evaluating: 2 of 8", 2, 8);
    time_ += 0.05;
    line.show("evaluating: 3 of 8", 3, 8);
    EXPECT_EQ(written_, "evaluating: 2 of 8, 15 s left");
    time_ += 5.05;
    line.show("evaluating: 4 of 8", 4, 8);
  }
  EXPECT_EQ(written_, "evaluating: 2 of 8, 15 s left\r\x1b[Kevaluating: 4 of 8, 10 s left\r\x1b[K");
}

TEST_F(StatusLines, GiveWayToLogLines) {
  std::optional<StatusLine> line(terminal(true));
  time_ += 1;
  line->show("busy", 0, 1);
  log::warning("look");
  EXPECT_EQ(written_, "busy\r\x1b[Klook\n");
  line.reset();
  log::warning("again");
  EXPECT_EQ(written_, "busy\r\x1b[Klook\nagain\n");
}

TEST_F(StatusLines, NeverFillTheLastColumn) {
  StatusLine line(terminal(true));
  width_ = 5;
  time_ += 1;
  line.show("evaluating", 0, 8);
  EXPECT_EQ(written_, "eval");
}

TEST_F(StatusLines, AreLogLinesEveryTenSecondsElsewhere) {
  StatusLine line(terminal(false));
  for (int second = 0; second < 25; ++second) {
    line.show("tokenizing", second, 100);
    time_ += 1;
  }
  EXPECT_EQ(written_, "tokenizing, 1m30s left\ntokenizing, 1m20s left\n");
}

}  // namespace
}  // namespace trainer::report
