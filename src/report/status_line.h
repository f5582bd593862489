#pragma once
// Progress of a long job outside of training: evaluation of a checkpoint, tokenization.
#include <string>

#include "report/progress.h"

namespace trainer::report {

/// StatusLine shows "evaluating: 120 of 400 windows, 8 s left". On a terminal it is one line, redrawn in place and
/// erased when the object is destroyed. Log lines appear above it. Otherwise it is a log line at most every ten
/// seconds, the first after ten seconds.
class StatusLine {
 public:
  explicit StatusLine(Terminal terminal = stderr_terminal());
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// `done` and `total` are in a unit that is proportional to time, from which the remaining time is estimated.
  void show(const std::string& text, int64_t done, int64_t total);

 private:
  void clear();

  Terminal terminal_;
  double started_, last_;
  std::mutex mutex_;  // guards the screen: log lines come from any thread
  bool drawn_ = false;
  log::Sink previous_sink_;
};

}  // namespace trainer::report
