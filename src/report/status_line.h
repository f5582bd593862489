#pragma once
// Progress of a long job outside training: evaluation of a checkpoint, tokenization.
#include <string>

#include "report/progress.h"

namespace trainer::report {

/// Shows "evaluating: 120 of 400 windows, 8 s left". On a terminal, this is one line, redrawn in place below the log
/// lines and removed when the object is destroyed. Elsewhere, it is logged at most every ten seconds, first after ten.
class StatusLine {
 public:
  explicit StatusLine(Terminal terminal = stderr_terminal());
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// `done`, `total`: work so far and in all, in a unit to which time is proportional.
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
