#pragma once
// Progress of training on stderr: one line redrawn in place on a terminal, plain lines elsewhere.
#include <functional>
#include <mutex>
#include <string>

#include "base/log.h"
#include "config/run.h"
#include "report/events.h"

namespace trainer::report {

/// The terminal that progress is written to; tests replace it.
struct Terminal {
  std::function<void(const std::string&)> write;
  std::function<int()> width;     // current number of columns
  std::function<double()> clock;  // seconds
  bool is_tty = false, utf8 = false;
};
Terminal stderr_terminal();

/// Mode: on = the redrawn line everywhere, off = plain lines everywhere, automatic = on if stderr is a terminal. With
/// the redrawn line, this object is the log sink for its lifetime, so that log lines appear above the redrawn line. Any
/// thread may log; only one may call the member functions.
class Progress {
 public:
  /// `completed` steps of `total` are already done; plain lines are printed every `interval` steps (0: never), and for
  /// the first and last step.
  Progress(config::ProgressMode mode, int64_t completed, int64_t total, int64_t interval,
           Terminal terminal = stderr_terminal());
  /// Leaves the last state on the screen and restores the log sink.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepReport& report);
  /// Shows a longer activity between steps, "evaluating 3/20", in the redrawn line until the next step.
  void status(const std::string& activity);

 private:
  std::string plain_line(const StepReport& report) const;
  std::string bar_line() const;
  void draw(bool now);
  double seconds_left() const;

  Terminal terminal_;
  bool redrawing_;
  int64_t completed_, total_, interval_;
  double started_, last_draw_ = -1e9;
  StepReport last_;
  std::string activity_;
  std::mutex mutex_;  // guards the screen: log lines come from any thread
  bool drawn_ = false;
  log::Sink previous_sink_;
};

}  // namespace trainer::report
